"""Sessions on a node that makes images for them; what was made goes at the end."""

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.egress.settings import EgressSettings
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.images import MADE_REPOSITORY
from sandbox.making import MADE_BY_LABEL
from sandbox.requests import CallMark, RunRequest
from worker.boxes import Boxes
from worker.contract.extras import BoxExtras
from worker.contract.orders import BoxOrder, FinishOrder, FinishOutcome, WorkspaceMode
from worker.setup import Setup
from worker.workspace import NOWHERE

IMAGE = "sandhog-box:latest"
NODE = f"setup-tests-{os.getpid()}"
FRESH = f"echo {uuid.uuid4().hex} >/dev/null"
"""As a set-up command: makes the image's name this test run's own."""


class Mirror(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a package\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def mirror() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def client() -> Iterator[docker.APIClient]:
    client = docker.APIClient(version="auto")
    yield client
    for tag in made(client):
        client.remove_image(tag, force=True)
    client.close()


def made(client: docker.APIClient) -> list[str]:
    """What was made for sessions of this test run."""
    images = client.images(filters={"label": MADE_BY_LABEL, "reference": MADE_REPOSITORY})
    ours = [image for image in images if image["Labels"][MADE_BY_LABEL].startswith(f"s{os.getpid()}-")]
    return [tag for image in ours for tag in image["RepoTags"] or ()]


@pytest.fixture(scope="module")
def boxes(
    guest_folder: Path, proofs_dir: Path, tmp_path_factory: pytest.TempPathFactory, client: docker.APIClient
) -> Iterator[Boxes]:
    egress = EgressSettings(allow_private=frozenset({"mirror.test"}), resolver=lambda _: ["127.0.0.1"])
    engine = DockerEngine(
        EngineSettings(NODE, guest_folder, tmp_path_factory.mktemp("records"), proofs_dir, egress=egress)
    )
    boxes = Boxes(engine, 120, setup=Setup(engine))
    yield boxes
    boxes.close()
    left = client.containers(all=True, filters={"label": f"sandhog.node={NODE}"})
    assert not left, "containers were left behind"


class Session:
    """One session on the node, as its coordinator orders it."""

    def __init__(self, boxes: Boxes, base: Path, **extras: Any) -> None:
        self.boxes = boxes
        self.dir = base / "session"
        self.project = base / "project"
        self.dir.mkdir(parents=True)
        self.project.mkdir(exist_ok=True)
        self.order = BoxOrder(
            session=f"s{os.getpid()}-{uuid.uuid4().hex[:8]}",
            generation=1,
            session_dir=str(self.dir),
            image=IMAGE,
            workspace=str(self.project),
            workspace_mode=WorkspaceMode.COPY,
            extras=BoxExtras(**extras),
        )

    def run(self, command: str) -> str:
        box = self.boxes.box_for(self.order)
        mark = CallMark(key=uuid.uuid4().hex, digest="", session=self.order.session, generation=1, step=0)
        answer = box.run(RunRequest(mark, command=command))
        return answer.stdout.text() + answer.stderr.text()

    def image(self) -> str:
        """What the box is started from now."""
        template = self.boxes._specs.spec(self.order, NOWHERE)
        assert self.boxes._starter._setup is not None
        return self.boxes._starter._setup.resolved(self.order, lambda: template).image

    def finish(self) -> FinishOutcome:
        return self.boxes.finish(FinishOrder(box=self.order, node=NODE, incarnation="i"))


@pytest.fixture
def session(boxes: Boxes, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(prepare: Callable[[Path], None] = lambda _: None, **extras: Any) -> Session:
        base = tmp_path / str(len(sessions))
        (base / "project").mkdir(parents=True)
        prepare(base / "project")
        sessions.append(Session(boxes, base, **extras))
        return sessions[-1]

    yield make
    for each in sessions:
        each.finish()
