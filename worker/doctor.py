"""Looks at a node's machine: engine, a box made for it, disks, limits. Starts one box, and leaves nothing."""

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox import guest_folder
from sandbox.box import Box
from sandbox.controls import WEAKENABLE
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.engine_report import EngineReport, faults_of, read_report
from sandbox.errors import ControlNotEnforced, EngineUnavailable, ImageMissing, SandboxError
from sandbox.images import ImageSettings
from sandbox.machine import UnsupportedEngine
from sandbox.profiles import BUILT_IN, shown_bytes
from sandbox.shared import check_shared
from sandbox.spec import MIB, BoxSpec
from worker.contract.findings import Finding, failure, ok, warning
from worker.settings import NodeSettings

NODE = f"doctor-{os.getpid()}"
USER = 65_534
"""Nobody's; whatever the box writes goes with its directory."""
FEW_FILES = 4096
FILES_A_PLACE = 64
PIDS_A_PLACE = 1024
FEW_WATCHES = 8192


def look(settings: NodeSettings, image: str) -> Iterator[Finding]:
    """Yield what is found on this machine, engine first."""
    try:
        report = read_report()
    except EngineUnavailable as exc:
        yield _unreachable(exc)
        report = None
    if report is not None:
        yield from of_engine(report, {profile.runtime for profile in (*BUILT_IN.values(), *settings.profiles.values())})
        yield from of_box(settings, image)
    places = {"volume": settings.state_dir} | ({"engine's disk": Path(report.data_dir)} if report else {})
    for name, place in places.items():
        yield from of_disk(name, place, settings.min_free_mib * MIB)
    yield from of_limits(settings.places)


def of_engine(report: EngineReport, wanted: set[str | None]) -> Iterator[Finding]:
    """Yield what is to be said of an engine; `wanted` are the runtimes of profiles, None its default."""
    parts = ", ".join(f"{name} {version}" for name, version in report.parts.items())
    yield ok("engine", f"Docker {report.version} answers ({parts}; control groups v{report.control_groups})")
    for part, version, fault in faults_of(report.parts):
        if fault.only:
            fix = f"Install another version of {part}."
        else:
            mended = " or ".join(fault.mended_in)
            fix = f"Install {part} {mended} or later, or make sure that your distribution has mended its {version}."
        yield warning("engine", f"{part} {version}: {fault.words}", fix)
    missing = sorted(name for name in wanted if name is not None and name not in report.runtimes)
    if missing:
        fix = "Register it in the engine's daemon.json, or take it out of the profile (SANDHOG_PROFILES)."
        yield failure(
            "runtimes", f"a profile wants {', '.join(missing)}, and there is {', '.join(report.runtimes)}", fix
        )
    else:
        yield ok("runtimes", ", ".join(report.runtimes))


def of_box(settings: NodeSettings, image: str) -> Iterator[Finding]:
    """Yield whether a box can be had, and whether its controls hold: both are tried."""
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        # On the volume: the engine must be able to mount what lies there.
        base = Path(tempfile.mkdtemp(prefix="doctor-", dir=settings.state_dir))
    except OSError as exc:
        fix = "Make it writable for this user, or name another directory with SANDHOG_STATE_DIR."
        yield failure("volume", f"{settings.state_dir} cannot be written: {exc.strerror}", fix)
        return
    try:
        yield from _tried(base, settings, image)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def of_disk(name: str, place: Path, min_free_bytes: int) -> Iterator[Finding]:
    """Yield whether a disk has room for boxes."""
    try:
        status = os.statvfs(place)
    except OSError as exc:
        yield warning(
            "disk", f"the {name} at {place} cannot be looked at: {exc.strerror}", "Look at it on its machine."
        )
        return
    free_bytes = status.f_bavail * status.f_frsize
    said = f"the {name} has {shown_bytes(free_bytes)} free at {place}"
    if free_bytes < min_free_bytes:
        fix = "Free some (`sandhog gc`), or lower SANDHOG_MIN_FREE_MIB: no box starts below it."
        yield failure("disk", f"{said}, and {shown_bytes(min_free_bytes)} must stay free", fix)
    elif free_bytes < 2 * min_free_bytes:
        yield warning("disk", f"{said}: nearly full", "Free some: `sandhog gc --dry-run` shows what would go.")
    else:
        yield ok("disk", said)
    if status.f_files > 0 and status.f_favail < status.f_files // 50:
        yield warning(
            "disk", f"the {name} has {status.f_favail} file entries left at {place}", "Remove many small files."
        )


def of_limits(places: int) -> Iterator[Finding]:
    """Yield whether the machine's limits are enough for so many boxes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(FEW_FILES, FILES_A_PLACE * places)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        fix = f"Raise it: `ulimit -n {wanted}`, or LimitNOFILE={wanted} in the service."
        yield warning("limits", f"{soft} open files, and {places} boxes may want {wanted}", fix)
    else:
        yield ok("limits", f"{'any number of' if soft == resource.RLIM_INFINITY else soft} open files")
    pids = _kernel_number("kernel/pid_max")
    if pids is not None and pids < PIDS_A_PLACE * places:
        fix = f"Raise it: `sysctl kernel.pid_max={PIDS_A_PLACE * places * 2}`."
        yield warning("limits", f"{pids} processes on this machine for {places} boxes", fix)
    watches = _kernel_number("fs/inotify/max_user_watches")
    if watches is not None and watches < FEW_WATCHES:
        fix = f"Raise it: `sysctl fs.inotify.max_user_watches={8 * FEW_WATCHES}`."
        yield warning("limits", f"{watches} watched files for a user: watching build tools fail in boxes", fix)


def _tried(base: Path, settings: NodeSettings, image: str) -> Iterator[Finding]:
    try:
        check_shared(settings.state_dir)
    except UnsupportedEngine as exc:
        yield failure("volume", str(exc), "docs/deploy.md says how the volume is mounted.")
        return
    except (SandboxError, OSError) as exc:
        yield failure("engine", str(exc), "See that it answers, and that the volume's disk is not full.")
        return
    try:
        folder = guest_folder.install(settings.state_dir / "guest")
        engine = DockerEngine(
            EngineSettings(
                node=NODE,
                guest_folder=folder,
                records_dir=base / "node" / "boxes",
                # None: what was proven before is tried again.
                proofs_dir=None,
                min_free_bytes=0,
                images=ImageSettings(may_pull=False),
            )
        )
    except (SandboxError, OSError) as exc:
        yield failure("engine", str(exc), "Boxes cannot be had from this engine; see docs/isolation.md.")
        return
    try:
        yield from _of_start(lambda: engine.start(_spec(base, image), "sandhog-doctor", 1), image, settings)
    finally:
        engine.close()


def _of_start(start: Callable[[], Box], image: str, settings: NodeSettings) -> Iterator[Finding]:
    try:
        box = start()
    except ImageMissing as exc:
        if settings.pull and "sandhog-box" not in image:
            yield warning("image", f"{image} is not on this engine yet", "It is pulled when a session wants it.")
        else:
            fix = "Build it with `bash deploy/setup.sh`, or name another one with SANDHOG_IMAGE or --image."
            yield failure("image", str(exc), fix)
    except ControlNotEnforced as exc:
        yield ok("image", f"{image} is on the engine")
        fix = "Mend the engine's set-up; docs/isolation.md says what each control needs and how a profile does without."
        yield failure("controls", str(exc), fix)
    except (SandboxError, OSError) as exc:
        yield failure(
            "box", f"no box of {image} starts: {exc}", "See the engine's log; docs/boxes.md names the causes."
        )
    else:
        box.close()
        yield ok("image", f"{image} is on the engine")
        yield ok("box", "a box of it starts, and its guest answers")
        yield ok("controls", f"tried in a box, and hold: {', '.join(sorted(WEAKENABLE))}, network, user, mounts")


def _spec(base: Path, image: str) -> BoxSpec:
    workspace, spill = base / "workspace", base / "spill"
    for directory in (workspace, spill):
        directory.mkdir()
    uid, gid = (USER, USER) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    if os.geteuid() == 0:
        os.chown(workspace, uid, gid)
    return BoxSpec(image=image, workspace_dir=workspace, spill_dir=spill, uid=uid, gid=gid, lifetime_s=600)


def _unreachable(error: EngineUnavailable) -> Finding:
    words = str(error)
    if "Permission denied" in words or "PermissionError" in words:
        fix = "Let this user use the engine's socket (`usermod -aG docker USER`, then log in anew); it is root's power."
        return failure("engine", "the engine's socket may not be opened by this user", fix)
    fix = "Start it (`systemctl start docker`), or set DOCKER_HOST to where it listens."
    return failure("engine", f"no Docker engine answers at {os.environ.get('DOCKER_HOST') or 'the local socket'}", fix)


def _kernel_number(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None
