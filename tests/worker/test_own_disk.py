"""Private copies on file systems of their own: bounded to the byte, made a session's, swept, and gone at the end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandbox.box import Box
from sandbox.creation import NAME_PREFIX, NODE_LABEL
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.errors import ControlNotEnforced
from sandbox.pool import PoolSettings
from sandbox.profiles import Profile
from sandbox.requests import CallMark, RunAnswer, RunRequest
from sandbox.spec import MIB, BoxSpec
from tests.sandbox.gvisor import RUNTIME, missing_gvisor
from worker import loop_device, own_disk
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, FinishOrder, WorkspaceMode
from worker.own_disk import OwnDisks

NODE = f"own-disk-{os.getpid()}"
SIZE_BYTES = 24 * MIB
PROFILES = {"tight": Profile.model_validate({"workspace": "24MiB"})}
Until = Callable[..., None]
_steps = iter(range(1, 1_000_000))


def mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{place}/")]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[OwnDisks]:
    """Disks that can be made here; none may be left mounted."""
    disks = OwnDisks(tmp_path / "templates", has_spares=True)
    probe = tmp_path / "probe"
    probe.mkdir()
    if not disks.make(probe, SIZE_BYTES):
        pytest.skip("no file systems can be made and mounted here: no root, no loop devices, or no mkfs.ext4")
    disks.remove(probe)
    yield disks
    disks.close()
    left = mounts_below(tmp_path)
    # Nobody could remove the test's directory otherwise.
    for mount in left:
        loop_device.unmount(Path(mount))
    assert left == []


def test_a_disk_takes_so_much_and_keeps_what_is_in_it(disks: OwnDisks, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert disks.make(folder, SIZE_BYTES)
    assert own_disk.size_bytes(folder) == SIZE_BYTES
    place = folder / own_disk.MOUNT
    with pytest.raises(OSError, match="No space left"):
        (place / "large").write_bytes(bytes(SIZE_BYTES + 1))
    (place / "large").unlink()
    (place / "kept").write_text("kept")
    disks.let_go(folder)
    assert not (place / "kept").exists()
    disks.open(folder)
    disks.open(folder)
    assert (place / "kept").read_text() == "kept"
    disks.remove(folder)
    assert list(folder.iterdir()) == []


def test_of_one_file_there_is_never_more_than_one_device(disks: OwnDisks, tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
    assert disks.make(folder, SIZE_BYTES)
    loop_device.mount_file(folder / own_disk.IMAGE, other)
    try:
        (other / "seen").write_text("seen")
        assert (folder / own_disk.MOUNT / "seen").read_text() == "seen"
    finally:
        loop_device.unmount(other)
        disks.remove(folder)


def test_only_what_no_process_holds_is_swept(disks: OwnDisks, tmp_path: Path, until: Until) -> None:
    folders = [tmp_path / "ours", tmp_path / "left"]
    for folder in folders:
        folder.mkdir()
    assert disks.make(folders[0], SIZE_BYTES)
    killed = OwnDisks(tmp_path / "templates", has_spares=True)
    assert killed.make(folders[1], SIZE_BYTES)
    assert OwnDisks(tmp_path / "templates").sweep([*folders, tmp_path / "none"]) == []
    for each in (disks, killed):
        until(lambda each=each: each._spares.get(SIZE_BYTES) is not None, "its spare one is made", 60)
    for file in killed._held.values():
        os.close(file)
    killed._held.clear()
    assert OwnDisks(tmp_path / "templates").sweep(folders) == folders[1:]
    assert loop_device.is_mounted(folders[0] / own_disk.MOUNT)
    assert len([mount for mount in mounts_below(tmp_path) if "spare-" in mount]) == 1, "only what the living one has"
    for folder in folders:
        disks.remove(folder)


def test_the_next_one_stands_ready_and_goes_with_the_process(disks: OwnDisks, tmp_path: Path, until: Until) -> None:
    def spares() -> list[str]:
        return [mount for mount in mounts_below(tmp_path) if "spare-" in mount]

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        until(lambda: len(spares()) == 1, "one stands ready", 60)
        [before] = spares()
        assert disks.make(tmp_path / name, SIZE_BYTES)
        assert not Path(before).parent.exists()
        assert loop_device.is_mounted(tmp_path / name / own_disk.MOUNT)
        (tmp_path / name / own_disk.MOUNT / "own").write_text(name)
    for name in ("a", "b"):
        assert (tmp_path / name / own_disk.MOUNT / "own").read_text() == name
        disks.remove(tmp_path / name)
    disks.close()
    assert [path.name for path in (tmp_path / "templates").iterdir()] == [f"empty-{SIZE_BYTES}.img"]


def test_what_several_machines_can_reach_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_device, "file_system_of", lambda _: "nfs4")
    assert not OwnDisks(tmp_path / "templates").make(tmp_path, SIZE_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount() -> None:
    assert loop_device.file_system_of(Path("/proc/self")) == "proc"


@pytest.fixture
def order(tmp_path: Path) -> Callable[[str], BoxOrder]:
    source = tmp_path / "project"
    source.mkdir()
    (source / "a.txt").write_text("alpha\n")

    def make(session: str) -> BoxOrder:
        return BoxOrder(
            session=session,
            generation=1,
            session_dir=str(tmp_path / "sessions" / session),
            image="sandhog-box:latest",
            workspace=str(source),
            workspace_mode=WorkspaceMode.COPY,
            profile="tight",
        )

    return make


@pytest.fixture
def make(
    guest_folder: Path, tmp_path: Path, until: Until
) -> Iterator[Callable[[OwnDisks, PoolSettings | None], Boxes]]:
    """A node's boxes, again and again as its process is started again; none may be left."""
    made: list[Boxes] = []

    def build(disks: OwnDisks, pool: PoolSettings | None = None) -> Boxes:
        engine = DockerEngine(
            EngineSettings(NODE, guest_folder, tmp_path / "records", Path(os.environ["SANDHOG_PROOFS_DIR"]))
        )
        boxes = Boxes(engine, 60, pool=pool, nursery=tmp_path / "warm", profiles=PROFILES, disks=disks)
        boxes.adopt()
        made.append(boxes)
        return boxes

    yield build
    for boxes in made:
        boxes.close()
    client = docker.APIClient(version="auto")
    until(lambda: not client.containers(all=True, filters={"label": f"{NODE_LABEL}={NODE}"}), "no box is left")
    client.close()


def sh(box: Box, command: str) -> RunAnswer:
    step = next(_steps)
    return box.run(RunRequest(CallMark(f"k{step}", "", "s", 1, step), command=command, timeout_ms=60_000))


@pytest.mark.docker
def test_a_session_fills_its_own_disk_and_its_work_survives_box_and_node(
    disks: OwnDisks,
    make: Callable[..., Boxes],
    order: Callable[[str], BoxOrder],
    tmp_path: Path,
) -> None:
    boxes = make(disks)
    box = boxes.box_for(order("one"))
    assert boxes.bounds(order("one"))["/workspace"] == "a file system of its own, 24 MiB"
    full = sh(box, "head -c 40000000 /dev/zero > big")
    assert b"No space left" in full.stderr.head
    assert full.full == ("/workspace",)
    sh(box, "rm big; echo beta >> a.txt")
    client = docker.APIClient(version="auto")
    client.kill(NAME_PREFIX + box.box_id)
    client.close()
    assert sh(boxes.box_for(order("one")), "cat a.txt").stdout.head == b"alpha\nbeta\n"

    # The process ends, the next one adopts the box or starts another on the same disk.
    boxes._engine.close()
    disks.close()
    again = make(OwnDisks(tmp_path / "templates"))
    assert sh(again.box_for(order("one")), "cat a.txt").stdout.head == b"alpha\nbeta\n"

    ended = again.finish(FinishOrder(box=order("one"), node="n", incarnation="i", apply=True))
    assert (ended.error, ended.changed, ended.applied) == (None, ["a.txt"], True)
    assert {path.name for path in (tmp_path / "sessions" / "one").iterdir()} <= {"patch.diff", "result", "spill"}


@pytest.mark.docker
def test_a_warm_boxs_disk_becomes_the_sessions_and_is_kept_for_one_that_goes_on(
    disks: OwnDisks,
    make: Callable[..., Boxes],
    order: Callable[[str], BoxOrder],
    tmp_path: Path,
    until: Until,
) -> None:
    boxes = make(disks, PoolSettings(min_idle=1, max_idle=1, least_wants=1))
    boxes.box_for(order("cold"))
    warm = boxes._warm
    assert warm is not None
    until(lambda: warm.idle() == 1, "a box stands ready")
    [ready] = [waits.box for kind in warm._pool._kinds.values() for waits in kind.idle]
    box = boxes.box_for(order("warm"))
    assert box is ready
    assert sh(box, "cat a.txt; echo beta >> a.txt").stdout.head == b"alpha\n"
    assert b"No space left" in sh(box, "head -c 40000000 /dev/zero > big; rm big").stderr.head
    assert boxes.bounds(order("warm"))["/workspace"] == "a file system of its own, 24 MiB"
    session_dir = tmp_path / "sessions" / "warm"
    assert (session_dir / "disk" / "work" / "a.txt").read_text() == "alpha\nbeta\n"

    ended = boxes.finish(FinishOrder(box=order("warm"), node="n", incarnation="i", keep_workspace=True))
    assert ended.error is None
    assert mounts_below(session_dir) == []
    later = order("warm").model_copy(update={"generation": 2})
    assert sh(boxes.box_for(later), "cat a.txt").stdout.head == b"alpha\nbeta\n"
    ended = boxes.finish(FinishOrder(box=later, node="n", incarnation="i"))
    assert (ended.error, ended.changed) == (None, ["a.txt"])


@pytest.mark.docker
@pytest.mark.parametrize("runtime", [None, RUNTIME], ids=["runc", "gvisor"])
def test_a_disk_that_the_box_does_not_see_is_refused(
    guest_folder: Path, tmp_path: Path, runtime: str | None, disks: OwnDisks
) -> None:
    if runtime == RUNTIME and (reason := missing_gvisor()) is not None:
        pytest.skip(reason)
    folder, spill = tmp_path / "a", tmp_path / "spill"
    folder.mkdir()
    spill.mkdir()
    assert disks.make(folder, SIZE_BYTES)
    engine = DockerEngine(
        EngineSettings(
            NODE,
            guest_folder,
            tmp_path / "records",
            Path(os.environ["SANDHOG_PROOFS_DIR"]),
        )
    )
    try:
        spec = BoxSpec(
            "sandhog-box:latest", folder / own_disk.MOUNT, spill, 0, 0, workspace_size_bytes=SIZE_BYTES, runtime=runtime
        )
        engine.start(spec, "s", 1).close()
        with pytest.raises(ControlNotEnforced, match="SANDHOG_WORKSPACE_DISKS"):
            engine.start(BoxSpec(**{**vars(spec), "workspace_dir": tmp_path}), "s", 1)
    finally:
        engine.close()
        disks.remove(folder)
