"""Whether limits are enforced: tried once for an image on a machine, in a box made to be tried.

That a box has a limit is read in each (`controls`); that the runtime also enforces it can only be tried, and is tried
with small limits, since the same mechanism stands behind a large one: spec → **proof** → box.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

from sandbox import controls
from sandbox.box import Box
from sandbox.errors import BoxLost, ControlNotEnforced, LossReason, SandboxError
from sandbox.guest_folder import command_line
from sandbox.machine import Machine
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import MIB, BoxSpec, Limits

CANARY = "sandhog-canary"
"""Profile and session of the boxes made to be tried."""
LIMITS = Limits(
    memory_bytes=128 * MIB, cpus=0.5, pids=48, open_files=64, shm_bytes=MIB, tmp_bytes=2 * MIB, home_bytes=MIB
)  # fmt: skip
GVISOR_MEMORY_BYTES = 384 * MIB
"""Its own kernel's memory is the box's too."""
BEYOND = {
    "open_files": LIMITS.open_files + 8,
    "shm": 2 * LIMITS.shm_bytes,
    "tmp": 2 * LIMITS.tmp_size_bytes,
    "home": 2 * LIMITS.home_size_bytes,
    "pids": LIMITS.pids + 8,
    "cpus": 0,
    "no_new_privileges": 0,
}
"""How far each try goes."""
LIFETIME_S = 120
TRIES_TIMEOUT_MS = 60_000
PROBE_TIMEOUT_MS = 10_000
FORMAT = 1
PREFIX = "sandhog-canary-"
STALE_S = 3600

Found = dict[str, float | str]


class Proofs:
    """Remembers what was proven, in a directory that outlives the process. Thread-safe."""

    def __init__(
        self,
        directory: Path | None,
        machine: Machine,
        guest_folder: Path,
        scratch: Path,
        start: Callable[[BoxSpec], Box],
    ) -> None:
        """`directory`: None remembers for this process only. `scratch`: where the canaries' workspaces lie, under the
        same path for the engine. `start`: a box whose numbers were checked."""
        self._directory = directory
        self._scratch = scratch
        self._machine = machine
        self._guest_folder = guest_folder
        self._start = start
        self._guard = threading.Lock()
        self._known: dict[str, Future[None]] = {}

    def begin(self, spec: BoxSpec, image_id: str) -> Future[None]:
        """Prove in the background, unless it is proven; the result raises what `controls.check_tries` raises.

        A proof that failed is tried again the next time.
        """
        key = self._key(spec, image_id)
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        with self._guard:
            known = self._known.get(digest)
            if known is not None and not (known.done() and known.exception()):
                return known
            future = self._known[digest] = Future[None]()
        if self._is_stored(digest):
            future.set_result(None)
        else:
            threading.Thread(
                target=self._prove, args=(spec, key, digest, future), name="control-proof", daemon=True
            ).start()
        return future

    def _key(self, spec: BoxSpec, image_id: str) -> dict[str, object]:
        """All that decides whether a limit is enforced; the limits' numbers do not."""
        return {
            "format": FORMAT,
            "engine": self._machine.engine_id,
            "engine_version": self._machine.engine_version,
            "kernel": self._machine.kernel,
            "guest": self._guest_folder.name,
            "image": image_id,
            "runtime": spec.runtime,
            "network": spec.network.value,
            "is_root": spec.uid == 0,
            "allow_weak": sorted(spec.allow_weak),
        }

    def _is_stored(self, digest: str) -> bool:
        return self._directory is not None and (self._directory / f"{digest}.json").exists()

    def _prove(self, spec: BoxSpec, key: dict[str, object], digest: str, future: Future[None]) -> None:
        try:
            found = self._tried(spec)
            self._store(digest, {"key": key, "limits": asdict(_limits(spec)), "found": found})
        except BaseException as error:
            # Whoever waits for the proof gets it, whatever it is.
            future.set_exception(error)
        else:
            future.set_result(None)

    def _tried(self, spec: BoxSpec) -> Found:
        """Return what was found once every limit held; a busy machine can blur one measurement, but hardly two.

        Raises:
            ControlNotEnforced: a limit did not hold twice.
        """
        held = replace(spec, limits=_limits(spec))
        found = self._try(spec)
        try:
            controls.check_tries(held, found)
        except ControlNotEnforced:
            found = self._try(spec)
            controls.check_tries(held, found)
        return found

    def _try(self, spec: BoxSpec) -> Found:
        # Closed to others: a set-uid program lies in it for as long as the try takes.
        self._scratch.mkdir(parents=True, exist_ok=True)
        _drop_stale(self._scratch)
        base = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._scratch))
        try:
            workspace, spill = base / "workspace", base / "spill"
            for directory in (workspace, spill):
                directory.mkdir()
            self._plant(workspace, spec)
            box = self._start(
                replace(
                    spec,
                    workspace_dir=workspace,
                    workspace_size_bytes=None,
                    spill_dir=spill,
                    limits=_limits(spec),
                    env={},
                    egress=(),
                    profile=CANARY,
                    lifetime_s=LIFETIME_S,
                    dead_man_s=LIFETIME_S,
                )
            )
            try:
                found = _ask(box, **BEYOND)
                found.update(_ask_memory(box, 2 * _limits(spec).memory_bytes))
            finally:
                box.close()
            return found
        finally:
            shutil.rmtree(base, ignore_errors=True)

    def _plant(self, workspace: Path, spec: BoxSpec) -> None:
        """Give the workspace to the box's user, and put a program into it that belongs to root and is set-uid."""
        if os.geteuid() != 0:
            return
        os.chown(workspace, spec.uid, spec.gid)
        if spec.uid != 0:
            program = workspace / "set-uid-id"
            shutil.copy(self._guest_folder / "bin" / "rg", program)
            os.chown(program, 0, 0)
            program.chmod(0o4755)

    def _store(self, digest: str, proof: dict[str, object]) -> None:
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = self._directory / f".{digest}-{os.getpid()}-{threading.get_ident()}"
            draft.write_text(json.dumps(proof), encoding="utf-8")
            draft.replace(self._directory / f"{digest}.json")
        except OSError:
            # It holds for this process all the same.
            return


def look_inside(box: Box, spec: BoxSpec) -> None:
    """Read what holds for commands; a look that did not come about proves nothing, and is taken once more.

    Raises:
        ControlNotEnforced: a control does not hold.
        BoxLost.
    """
    for attempt in ("first", "second"):
        mark = CallMark(f"sandhog-probe-{attempt}", digest="", session="sandhog-probe", generation=0, step=0)
        answer = box.run(RunRequest(mark, argv=controls.PROBE_ARGV, cwd="/", timeout_ms=PROBE_TIMEOUT_MS))
        if answer.exit_code == 0:
            break
    controls.check(spec, box.info, answer.stdout.text())


def _drop_stale(scratch: Path) -> None:
    """Remove what a process that was killed left behind."""
    for left in scratch.glob(f"{PREFIX}*"):
        try:
            status = left.lstat()
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue


def _limits(spec: BoxSpec) -> Limits:
    return replace(LIMITS, memory_bytes=GVISOR_MEMORY_BYTES) if spec.is_gvisor else LIMITS


def _ask(box: Box, **tries: int) -> Found:
    mark = CallMark(key=f"{CANARY}-{'-'.join(tries)}", digest="", session=CANARY, generation=0, step=0)
    argv = command_line("canary", *(f"{name}={most}" for name, most in tries.items()))
    answer = box.run(RunRequest(mark, argv=tuple(argv), cwd="/", timeout_ms=TRIES_TIMEOUT_MS))
    if answer.signal is not None or answer.exit_code is None:
        return {}
    try:
        found: Found = json.loads(answer.stdout.text())
    except ValueError:
        raise SandboxError(f"the limits could not be tried: {answer.stderr.text()[-1000:]}") from None
    return found


def _ask_memory(box: Box, most: int) -> Found:
    """Whoever goes beyond the memory is killed, or the box is."""
    try:
        return _ask(box, memory=most) or {"memory": 0}
    except BoxLost as lost:
        if lost.reason in (LossReason.OOM, LossReason.KILLED, LossReason.ENDED):
            return {"memory": 0}
        raise
