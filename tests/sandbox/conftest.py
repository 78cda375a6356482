"""Real boxes for the tests of the sandbox room; nothing of them is left behind."""

import io
import itertools
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.container import remove_container
from sandbox.creation import NODE_LABEL
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark, RunAnswer, RunRequest
from sandbox.spec import BoxSpec
from tests.sandbox.gvisor import FRESH_BOX_TESTS, RUNTIME, VOID, missing_gvisor

IMAGE = "sandhog-box:latest"
RUN = f"run-{os.getpid()}"
"""In every name, so that two test runs on one engine do not meet."""
BUSYBOX_IMAGE = f"sandhog-test-busybox:{RUN}"
NODE = "sandbox-tests"
AGENT = 10_001

_keys = itertools.count(1)


def new_mark(session: str = "s", step: int = 0, **changes: Any) -> CallMark:
    fields = {"key": f"key-{next(_keys)}", "digest": "d", "session": session, "generation": 1, "step": step}
    return CallMark(**{**fields, **changes})


@pytest.fixture
def mark() -> Callable[..., CallMark]:
    """A call nobody made yet; fields can be given."""
    return new_mark


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.APIClient]:
    client = docker.APIClient(version="auto")
    yield client
    client.close()


@pytest.fixture(scope="session")
def busybox_image(docker_client: docker.APIClient) -> Iterator[str]:
    """An image with one static program, which is also its shell."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("there is no static busybox here")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in ("sh", "sleep", "cat", "ls"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    docker_client.import_image_from_data(data.getvalue(), *BUSYBOX_IMAGE.split(":"))
    yield BUSYBOX_IMAGE
    docker_client.remove_image(BUSYBOX_IMAGE, force=True)


@pytest.fixture(scope="session")
def make_engine(
    guest_folder: Path,
    proofs_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    docker_client: docker.APIClient,
) -> Iterator[Callable[..., DockerEngine]]:
    """Engines of a node of this test run; all are closed and their boxes removed at the end."""
    engines = []
    nodes = set()

    def make(node: str = NODE, records_dir: Path | None = None, **settings: Any) -> DockerEngine:
        records_dir = records_dir or tmp_path_factory.mktemp("records")
        settings = {"proofs_dir": proofs_dir, **settings}
        engine = DockerEngine(EngineSettings(f"{node}-{RUN}", guest_folder, records_dir, **settings))
        engines.append(engine)
        nodes.add(node)
        return engine

    yield make
    for engine in engines:
        engine.close()
    for node in nodes:
        for container in docker_client.containers(all=True, filters={"label": f"{NODE_LABEL}={node}-{RUN}"}):
            remove_container(docker_client, container["Id"])


@pytest.fixture(scope="session")
def containers_of(docker_client: docker.APIClient) -> Callable[[str], int]:
    """How many containers a node of this test run has, in whatever state."""

    def count(node: str) -> int:
        return len(docker_client.containers(all=True, filters={"label": f"{NODE_LABEL}={node}-{RUN}"}))

    return count


@pytest.fixture(scope="session")
def engine(
    make_engine: Callable[..., DockerEngine], containers_of: Callable[[str], int], until: Callable[..., None]
) -> Iterator[DockerEngine]:
    engine = make_engine()
    yield engine
    engine.sweep()
    # The engine takes long to remove a gVisor that hangs, and answers before it is done.
    until(lambda: containers_of(NODE) == 0, "the engine left no container behind", 60)


@pytest.fixture(scope="session")
def make_spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., BoxSpec]:
    """Specifications with a workspace that belongs to the agent."""

    def make(uid: int = AGENT, **fields: Any) -> BoxSpec:
        base = tmp_path_factory.mktemp("box")
        base.chmod(0o755)
        workspace, spill = base / "workspace", base / "spill"
        workspace.mkdir()
        spill.mkdir()
        shutil.chown(workspace, uid, uid)
        return BoxSpec(**{"image": IMAGE, **fields}, workspace_dir=workspace, spill_dir=spill, uid=uid, gid=uid)

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run some tests of boxes of their own on both runtimes."""
    if "fresh_box" in metafunc.fixturenames and metafunc.function.__name__ in FRESH_BOX_TESTS:
        metafunc.parametrize("runtime", [None, RUNTIME], ids=["runc", "gvisor"], indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    callspec = getattr(item, "callspec", None)
    if callspec is None or RUNTIME not in [parameter for parameter in callspec.params.values() if parameter]:
        return
    if (reason := missing_gvisor()) is not None:
        pytest.skip(reason)
    name = item.name.partition("[")[0]
    if name in VOID:
        pytest.skip(f"gVisor: {VOID[name]}")


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str | None:
    """The runtime of fresh boxes."""
    given: str | None = getattr(request, "param", None)
    return given


@pytest.fixture(scope="module", params=[AGENT, 0, RUNTIME], ids=["agent", "root", "gvisor"])
def box(request: pytest.FixtureRequest, engine: DockerEngine, make_spec: Callable[..., BoxSpec]) -> Iterator[Box]:
    """A box shared by the tests of a module: for a plain user, for root, and on gVisor."""
    spec = make_spec(runtime=RUNTIME) if request.param == RUNTIME else make_spec(request.param)
    box = engine.start(spec, "s", 1)
    yield box
    box.close()


@pytest.fixture
def fresh_box(
    engine: DockerEngine, make_spec: Callable[..., BoxSpec], runtime: str | None
) -> Iterator[Callable[..., Box]]:
    """Boxes for one test, which may ruin them."""
    boxes: list[Box] = []

    def start(uid: int = AGENT, **fields: Any) -> Box:
        boxes.append(engine.start(make_spec(uid, **{"runtime": runtime, **fields}), "s", 1))
        return boxes[-1]

    yield start
    for box in boxes:
        box.close()


def shell_of(box: Box) -> Callable[..., RunAnswer]:
    def run(command: str, on_output: Callable[[bytes], None] | None = None, **fields: Any) -> RunAnswer:
        given = fields.pop("mark", None) or new_mark(fields.pop("session", "s"))
        return box.run(RunRequest(given, command=command, **fields), on_output)

    return run


@pytest.fixture
def shell() -> Callable[[Box], Callable[..., RunAnswer]]:
    """Makes of a box a function that runs a command text."""
    return shell_of


@pytest.fixture
def run(box: Box) -> Callable[..., RunAnswer]:
    """Runs a command text in the shared box."""
    run = shell_of(box)
    run("cd /workspace")
    return run
