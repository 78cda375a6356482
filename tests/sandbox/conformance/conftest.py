"""The same tests on every engine: boxes without isolation, and the Docker engine's with runc and gVisor.

On this machine's own processes the tests run whatever they run, so none of them may do harm there: what a box must
withstand is tested beside, on real boxes only.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.engine_api import Engine
from sandbox.process_engine import ProcessEngine
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec
from tests.sandbox.asking import Files
from tests.sandbox.conftest import AGENT, IMAGE, new_mark, shell_of
from tests.sandbox.gvisor import RUNTIME

PROCESSES = "processes"
ENGINES = (
    pytest.param(PROCESSES, id="processes"),
    pytest.param(AGENT, id="agent", marks=pytest.mark.docker),
    pytest.param(RUNTIME, id="gvisor", marks=pytest.mark.docker),
)
"""Which engine, and on which runtime. Boxes of root are tested beside: their engine and guest are the same."""
RELAYED = "relayed"
OF_LINKS = ("test_links", "test_pipes")
"""Tests of what a link carries: also with an executed relay where a guest could come by itself; gVisor has no other."""
_directories = itertools.count(1)


@pytest.fixture(scope="session")
def process_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessEngine]:
    engine = ProcessEngine("processes", tmp_path_factory.mktemp("records"), allow_no_isolation=True)
    yield engine
    engine.sweep()
    engine.close()
    assert engine.records() == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_and_spec" in metafunc.fixturenames:
        is_of_links = metafunc.module.__name__.rpartition(".")[2] in OF_LINKS
        relayed = (pytest.param(RELAYED, id=RELAYED, marks=pytest.mark.docker),) if is_of_links else ()
        metafunc.parametrize("engine_and_spec", (*ENGINES, *relayed), indirect=True, scope="module")


@pytest.fixture(scope="session")
def relayed_engine(make_engine: Callable[..., DockerEngine]) -> DockerEngine:
    """An engine whose boxes have no doors."""
    return make_engine(RELAYED, has_doors=False)


@pytest.fixture(scope="module")
def engine_and_spec(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Engine, Callable[[], BoxSpec]]:
    """An engine, and what makes specifications for a box of it."""
    kind = request.param
    if kind == PROCESSES:
        return request.getfixturevalue("process_engine"), lambda: process_spec(tmp_path_factory.mktemp("box"))
    make_spec = request.getfixturevalue("make_spec")
    if kind == RELAYED:
        return request.getfixturevalue("relayed_engine"), make_spec
    fields = {"runtime": RUNTIME} if kind == RUNTIME else {"uid": kind}
    return request.getfixturevalue("engine"), lambda: make_spec(**fields)


def process_spec(base: Path) -> BoxSpec:
    workspace, spill = base.resolve() / "workspace", base.resolve() / "spill"
    workspace.mkdir()
    spill.mkdir()
    return BoxSpec(image=IMAGE, workspace_dir=workspace, spill_dir=spill, uid=os.geteuid(), gid=os.getegid())


@pytest.fixture(scope="module")
def box(engine_and_spec: tuple[Engine, Callable[[], BoxSpec]]) -> Iterator[Box]:
    """A box shared by the tests of a module."""
    engine, make_spec = engine_and_spec
    box = engine.start(make_spec(), "s", 1)
    yield box
    box.close()


@pytest.fixture
def fresh_box(engine_and_spec: tuple[Engine, Callable[[], BoxSpec]]) -> Iterator[Callable[[], Box]]:
    """Boxes for one test."""
    boxes: list[Box] = []
    engine, make_spec = engine_and_spec

    def start() -> Box:
        boxes.append(engine.start(make_spec(), "s", 1))
        return boxes[-1]

    yield start
    for box in boxes:
        box.close()


@pytest.fixture
def home(box: Box) -> str:
    """The workspace of the shared box, as commands see it."""
    return shell_of(box)("pwd", session="nobody's").stdout.text().strip()


@pytest.fixture
def here(box: Box, home: str) -> str:
    """A new directory of the test's own in the shared box, the cwd of session `s`."""
    directory = f"{home}/test-{next(_directories)}"
    assert shell_of(box)(f"mkdir {directory} && cd {directory}").cwd == directory
    return directory


@pytest.fixture
def run(box: Box, here: str) -> Callable[..., RunAnswer]:
    """Runs a command text in the shared box, at first in the test's own directory."""
    assert here
    return shell_of(box)


@pytest.fixture
def files(box: Box, here: str) -> Files:
    """File requests in the test's own directory."""
    assert here
    return Files(box, new_mark)
