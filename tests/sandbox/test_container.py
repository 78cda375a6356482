"""An engine whose answers stay away: what became of a request is looked up. A real engine behind a leaky socket."""

import gc
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.creation import NAME_PREFIX
from sandbox.engine import DockerEngine
from sandbox.errors import EngineUnavailable
from sandbox.record import RecordStore
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec

pytestmark = pytest.mark.docker

LATE = f"late{os.getpid()}"
MakeEngine = Callable[..., DockerEngine]
MakeSpec = Callable[..., BoxSpec]
Shell = Callable[[Box], Callable[..., RunAnswer]]
Until = Callable[..., None]


class Hole:
    """A socket to the engine that loses what one kind of request is answered, or the request itself."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path = path
        self.loses_answers_to = b""
        self.holds = b""
        self.let_through = threading.Event()
        self.held = threading.Event()
        self._engine = engine
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.let_through.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._engine)
                self._sockets += [near, far]
                is_lost = threading.Event()
                threading.Thread(target=self._requests, args=(near, far, is_lost), daemon=True).start()
                threading.Thread(target=self._answers, args=(far, near, is_lost), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket, is_lost: threading.Event) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                first = data.split(b"\r\n", 1)[0]
                if self.loses_answers_to and re.search(self.loses_answers_to, first):
                    is_lost.set()
                if self.holds and self.holds in first:
                    is_lost.set()
                    self.held.set()
                    self.let_through.wait(30)
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _answers(self, far: socket.socket, near: socket.socket, is_lost: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                if not is_lost.is_set():
                    near.sendall(data)
            near.shutdown(socket.SHUT_WR)


@pytest.fixture(autouse=True)
def _proven(make_engine: MakeEngine, make_spec: MakeSpec) -> None:
    """What is tried once for an image is known: no box for that is started beside those that are counted here."""
    make_engine("proving").start(make_spec(), "s", 1).close()


@pytest.fixture
def hole(state_dir: Path) -> Iterator[Hole]:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        pytest.skip("the engine is not on a socket of this machine")
    hole = Hole(state_dir / "engine", address.removeprefix("unix://"))
    yield hole
    hole.close()


@pytest.fixture
def leaky_engine(make_engine: MakeEngine, hole: Hole) -> Iterator[MakeEngine]:
    """Makes engines behind the hole. They end before it does, however the test went: they would try forever."""
    engines = []

    def make(node: str, *args: Any, **settings: Any) -> DockerEngine:
        engines.append(make_engine(node, *args, base_url=f"unix://{hole.path}", **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
    # The Docker client leaves sockets of requests that timed out to the garbage collector.
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lost", [b"/containers/create", rb"/containers/\w+-\w+/start "])
def test_a_request_that_was_granted_without_an_answer_counts(
    leaky_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, hole: Hole, lost: bytes
) -> None:
    engine = leaky_engine("unanswered", timeout_s=3.0)
    hole.loses_answers_to = lost

    box = engine.start(make_spec(), "s", 1)

    assert shell(box)("echo here").stdout.head == b"here\n"
    box.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_container_that_is_made_after_its_start_was_given_up_is_removed(
    leaky_engine: MakeEngine,
    make_spec: MakeSpec,
    hole: Hole,
    tmp_path: Path,
    docker_client: docker.APIClient,
    until: Until,
) -> None:
    # Without a door: once its directory is gone, the engine makes none that has one.
    engine = leaky_engine("late", tmp_path / "records", timeout_s=3.0, new_id=lambda: LATE, has_doors=False)
    hole.holds = b"/containers/create"
    with pytest.raises(EngineUnavailable, match="timed out"):
        engine.start(make_spec(), "s", 1)
    assert hole.held.is_set()
    assert RecordStore(tmp_path / "records").box_ids() == []

    def is_there() -> bool:
        return bool(docker_client.containers(all=True, filters={"name": NAME_PREFIX + LATE}))

    assert not is_there()
    hole.let_through.set()
    until(is_there, "the engine got to it at last")

    assert engine.sweep() == 1

    assert not is_there()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_box_starts_on_a_workspace_that_a_lost_one_may_still_write(
    leaky_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, hole: Hole, docker_client: docker.APIClient
) -> None:
    engine, spec = leaky_engine("left", timeout_s=6.0), make_spec()
    lost = engine.start(spec, "s", 1)
    hole.holds = b"DELETE"
    lost.close()
    running = docker_client.inspect_container(NAME_PREFIX + lost.box_id)["State"]["Running"]
    assert running, "the engine did not hear of it"
    with pytest.raises(EngineUnavailable):
        engine.start(spec, "s", 1)

    hole.holds = b""
    box = engine.start(spec, "s", 1)

    assert docker_client.containers(all=True, filters={"name": NAME_PREFIX + lost.box_id}) == []
    assert shell(box)("echo here").stdout.head == b"here\n"
    hole.let_through.set()
    box.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_box_of_which_the_engine_says_nothing_is_not_swept(
    leaky_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, hole: Hole
) -> None:
    engine = leaky_engine("unsaid", timeout_s=6.0)
    box = engine.start(make_spec(), "s", 1)
    hole.loses_answers_to = rb"/containers/sandhog-\w+/json"
    assert box._link is not None
    box._link.close()
    assert not box.is_alive(), "as far as the engine can be asked"

    assert engine.sweep() == 0

    hole.loses_answers_to = b""
    assert shell(box)("echo here").stdout.head == b"here\n"
    box.close()


def test_no_more_boxes_start_at_once_than_the_engine_takes(make_engine: MakeEngine, make_spec: MakeSpec) -> None:
    engine = make_engine("crowd", concurrent_starts=2)
    most = 0
    boxes: list[Box] = []
    threads = [threading.Thread(target=lambda: boxes.append(engine.start(make_spec(), "s", 1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, len(engine._starting))
        threads[-1].join(0.001)
    for box in boxes:
        box.close()
    assert len(boxes) == 5
    assert most == 2
