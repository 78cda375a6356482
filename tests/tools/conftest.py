"""A real box for the tools' tests: one for all, each test in its own session and directory of the workspace."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox.box import Box
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark
from sandbox.spec import BoxSpec
from tools.base import RunContext, ToolResult
from tools.registry import builtin_registry
from tools.schema import parse_arguments
from worker.cursors import FileCursors
from worker.spill import SpillBounds, SpillFile

IMAGE = "sandhog-box:latest"
AGENT_UID = 12_345


@dataclass
class Desk:
    """A session in the box with a working directory of its own."""

    box: Box
    session: str
    directory: Path
    """On the host."""
    session_dir: Path
    """On the host; its `spill` is the box's."""
    bounds: SpillBounds = field(default_factory=SpillBounds)
    _steps: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def context(self, *, join: bool = False, step: int | None = None) -> RunContext:
        step = next(self._steps) if step is None else step
        mark = CallMark(f"{self.session}:1:{step}:0:1", "digest", self.session, 1, step, join)
        spill = self.spill(f"{self.session}-{step}", joining=join)
        cursors = FileCursors(self.session_dir, mark.key)
        return RunContext(self.box, mark, "tester", spill, cursors=cursors)

    def spill(self, name: str, *, joining: bool = False) -> SpillFile:
        """Make a spill file that the box sees."""
        return SpillFile(self.session_dir / "spill", name, self.bounds, joining=joining)

    def spilled(self, result: ToolResult) -> bytes:
        """Return what lies in the file that a result names."""
        return (self.session_dir / str(result.data["output_path"])[1:]).read_bytes()

    def call(self, tool: str, **arguments: Any) -> ToolResult:
        found = builtin_registry().get(tool)
        assert found is not None
        return found.run(parse_arguments(found, arguments), self.context())

    def put(self, name: str, content: str | bytes) -> Path:
        """Make a file that belongs to the agent."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        for made in (path, *path.parents):
            if self.directory in (made, *made.parents):
                _give_to_agent(made)
        return path


def _give_to_agent(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, AGENT_UID, AGENT_UID)


@pytest.fixture(scope="session")
def tools_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workspace")
    path.chmod(0o755)
    _give_to_agent(path)
    return path


@pytest.fixture(scope="session")
def tools_session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("node")
    (root / "spill").mkdir()
    return root


@pytest.fixture(scope="session")
def tools_box(
    guest_folder: Path, proofs_dir: Path, tools_workspace: Path, tools_session_dir: Path, docker_engine_or_skip: None
) -> Iterator[Box]:
    root = tools_session_dir
    spill = root / "spill"
    engine = DockerEngine(
        EngineSettings(
            node=f"tools-tests-{os.getpid()}",
            guest_folder=guest_folder,
            records_dir=root / "records",
            proofs_dir=proofs_dir,
        )
    )
    uid = AGENT_UID if os.getuid() == 0 else os.getuid()
    gid = AGENT_UID if os.getuid() == 0 else os.getgid()
    box = engine.start(BoxSpec(IMAGE, tools_workspace, spill, uid, gid), session="tools-tests", generation=1)
    yield box
    box.close()
    engine.close()


@pytest.fixture
def desk(tools_box: Box, tools_workspace: Path, tools_session_dir: Path, request: pytest.FixtureRequest) -> Desk:
    short = "".join(letter for letter in request.node.name if letter.isalnum() or letter == "_")[:60]
    directory = tools_workspace / f"{short}-{len(list(tools_workspace.iterdir()))}"
    directory.mkdir()
    _give_to_agent(directory)
    desk = Desk(tools_box, directory.name, directory, tools_session_dir)
    assert desk.call("Bash", command=f"cd /workspace/{directory.name}").status == "success"
    return desk


@pytest.fixture
def call(desk: Desk) -> Callable[..., ToolResult]:
    """Runs a tool by its name with the model's arguments."""
    return desk.call


@pytest.fixture
def put(desk: Desk) -> Callable[[str, str | bytes], Path]:
    """Makes a file of the agent's in the working directory; returns its path on the host."""
    return desk.put


@pytest.fixture
def inside(desk: Desk) -> str:
    """The working directory as the box sees it."""
    return f"/workspace/{desk.directory.name}"


@pytest.fixture
def context(desk: Desk) -> Callable[..., RunContext]:
    """Makes the context of a call; the same step is the same call."""
    return desk.context


@pytest.fixture
def spilled(desk: Desk) -> Callable[[ToolResult], bytes]:
    """Reads the file that a result names."""
    return desk.spilled
