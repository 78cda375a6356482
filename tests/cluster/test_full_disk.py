"""A workspace whose disk is full: what is written fails as itself, nothing else is harmed, and work goes on."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.wiring import open_cluster
from tests.cluster.conftest import AGENT_UID, Stage, Start
from tests.cluster.machines import Server

SIZE_BYTES = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file system of its own that has little room."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    (directory / "a.txt").write_text("alpha\nbeta\n")
    for path in (directory, directory / "a.txt"):
        os.chown(path, AGENT_UID, AGENT_UID)
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def call(name: str, **arguments: object) -> ScriptedCall:
    return ScriptedCall(name, arguments)


@pytest.mark.docker
async def test_a_full_workspace_is_told_and_the_session_goes_on(
    server: Server, state_dir: Path, start: Start, small: Path
) -> None:
    # A node refuses such a disk unless it is told otherwise.
    start("n", min_free_mib="0")
    change = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}
    turns = [
        Turn(calls=(call("Read", path="a.txt"), call("Bash", command=f"head -c {2 * SIZE_BYTES} /dev/zero > big"))),
        Turn(calls=(call("Edit", **change), call("Write", path="new.txt", content="x" * 9_000))),
        Turn(calls=(call("Bash", command="ls -A; cat a.txt; rm big"),)),
        Turn(calls=(call("Edit", **change), call("Write", path="new.txt", content="x" * 9_000))),
        Turn("done"),
    ]
    async with open_cluster(server.url, state_dir) as cluster:
        played = await Stage(cluster, small).play(turns)

    assert played.result.status == "completed", played.result
    _, filled, *refused, looked, edited, written = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert "No space left" in filled["text"], filled
    assert "/workspace is full" in filled["text"], filled
    assert [answer["error"]["code"] for answer in refused] == ["LIMIT_REACHED"] * 2, refused
    assert looked["text"].split() == ["a.txt", "big", "alpha", "beta"], looked
    assert (edited["status"], written["status"]) == ("success", "success"), (edited, written)
    assert (small / "a.txt").read_text() == "omega\nbeta\n"
    assert (small / "new.txt").read_text() == "x" * 9_000
