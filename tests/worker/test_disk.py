"""What boxes write to disk: measured from outside, and ended when it is too much."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandbox.box import Box
from sandbox.creation import NODE_LABEL
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.errors import BoxLost, LossReason
from sandbox.profiles import Profile
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import MIB, Network
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.disk import DiskWatch, measured_bytes
from worker.errors import BoxUnavailable

NODE = f"disk-{os.getpid()}"
OWNER = 10_001
PROFILES = {
    "tight": Profile.model_validate({"workspace": "8MiB"}),
    "open": Profile(network=Network.OPEN),
    "as-root": Profile.model_validate({"user": "root"}),
}


def write(path: Path, size_bytes: int) -> None:
    path.write_bytes(b"x" * size_bytes)


def test_a_copy_may_hold_and_a_bound_directory_may_grow_by_so_much(tmp_path: Path) -> None:
    watch = DiskWatch(lambda _: 0, tmp_path, step_bytes=-(1 << 60))
    for name in ("copy", "bound"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "old", 3 * MIB)
        watch.watch(name, tmp_path / name, is_copy=name == "copy", limit_bytes=2 * MIB)
    excess = watch.excess("copy")
    assert excess is not None
    assert "/workspace holds 3" in excess
    assert watch.excess("bound") is None
    write(tmp_path / "bound" / "new", 3 * MIB)
    grown = watch.excess("bound")
    assert grown is not None
    assert "/workspace grew by 3" in grown
    watch.keep({"bound"})
    assert watch.excess("copy") is None
    assert watch.excess("unknown") is None


def test_what_lies_outside_of_the_workspace_counts_by_itself(tmp_path: Path) -> None:
    sizes = {"a": 3 * MIB, "b": MIB}
    watch = DiskWatch(lambda box_id: sizes[box_id], tmp_path, step_bytes=-(1 << 60))
    for box_id in sizes:
        watch.watch(box_id, tmp_path, is_copy=False, limit_bytes=2 * MIB)
    assert "outside of /workspace grew by 3 MiB" in str(watch.excess("a"))
    assert watch.excess("b") is None


def test_nothing_is_measured_while_the_disk_has_what_it_had(tmp_path: Path) -> None:
    measured = []

    def layer(box_id: str) -> int:
        measured.append(box_id)
        return 0

    watch = DiskWatch(layer, tmp_path, step_bytes=1 << 60)
    watch.watch("a", tmp_path, is_copy=True, limit_bytes=MIB)
    for _ in range(3):
        watch.excess("a")
    # The workspace lies on the same file system, which was new at its own look.
    assert len(measured) <= 1


def test_links_are_not_followed_and_deep_trees_are_measured(tmp_path: Path, nest: Callable[[Path, int], int]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside / "big", 4 * MIB)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    nest(inside, 1500)
    assert 5 * MIB < measured_bytes(inside) < 10 * MIB
    with pytest.raises(ValueError, match="gone"):
        measured_bytes(tmp_path / "gone")


@pytest.fixture
def boxes(guest_folder: Path, tmp_path: Path) -> Iterator[Boxes]:
    engine = DockerEngine(
        EngineSettings(NODE, guest_folder, tmp_path / "records", proofs_dir=Path(os.environ["SANDHOG_PROOFS_DIR"]))
    )
    disk = DiskWatch(engine.layer_bytes, engine.machine.data_dir, step_bytes=-(1 << 60))
    boxes = Boxes(engine, 60, profiles=PROFILES, disk=disk)
    yield boxes
    boxes.close()
    client = docker.APIClient(version="auto")
    assert client.containers(all=True, filters={"label": f"{NODE_LABEL}={NODE}"}) == []
    client.close()


@pytest.fixture
def order(tmp_path: Path) -> Callable[..., BoxOrder]:
    def make(profile: str, mode: WorkspaceMode = WorkspaceMode.COPY) -> BoxOrder:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        (project / "a.txt").write_text("alpha\n")
        if os.geteuid() == 0:
            shutil.chown(project, OWNER, OWNER)
        return BoxOrder(
            session=f"s-{profile}", generation=1, session_dir=str(tmp_path / "sessions" / profile),
            image="sandhog-box:latest", workspace=str(project), workspace_mode=mode, profile=profile,
        )  # fmt: skip

    return make


def sh(box: Box, command: str) -> str:
    mark = CallMark(os.urandom(6).hex(), "d", "s", 1, 0)
    return box.run(RunRequest(mark, command=command)).stdout.text()


@pytest.mark.docker
@pytest.mark.parametrize("place", ["/workspace/x", "/var/tmp/x"])
def test_a_box_that_wrote_too_much_is_ended_and_the_next_call_is_told(
    boxes: Boxes, order: Callable[..., BoxOrder], place: str
) -> None:
    box = boxes.box_for(order("tight"))
    assert boxes.end_overfull() == []
    sh(box, f"head -c 9M /dev/zero > {place}")
    assert boxes.end_overfull() == ["s-tight"]
    with pytest.raises(BoxLost) as lost:
        sh(box, "true")
    assert lost.value.reason is LossReason.DISK
    assert "8 MiB that are allowed" in lost.value.detail
    fresh = boxes.box_for(order("tight"))
    assert "wrote too much" in boxes.take_note("s-tight", "s-tight")
    assert sh(fresh, "cat /workspace/a.txt; rm -f /workspace/x") == "alpha\n"
    assert boxes.end_overfull() == []


@pytest.mark.docker
def test_a_profile_decides_about_user_network_and_bounds(boxes: Boxes, order: Callable[..., BoxOrder]) -> None:
    with pytest.raises(BoxUnavailable, match="SANDHOG_ALLOW_OPEN_NETWORK"):
        boxes.box_for(order("open"))
    with pytest.raises(BoxUnavailable, match="no profile 'huge'"):
        boxes.box_for(order("huge"))
    with pytest.raises(BoxUnavailable, match="--as-root"):
        boxes.box_for(order("as-root", WorkspaceMode.BIND))
    assert boxes.bounds(order("tight")) == {
        "/tmp": "tmpfs, 512 MiB",
        "/home/agent": "tmpfs, 256 MiB",
        "/dev/shm": "tmpfs, 64 MiB",
        "/workspace": "watched, 8 MiB",
        "/": "watched, 8 MiB",
    }


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to root")
def test_root_inside_has_a_private_copy_of_its_own(boxes: Boxes, order: Callable[..., BoxOrder]) -> None:
    box = boxes.box_for(order("as-root"))
    assert sh(box, "id -u; cat a.txt; echo b > b.txt && stat -c %u a.txt b.txt").split() == ["0", "alpha", "0", "0"]
