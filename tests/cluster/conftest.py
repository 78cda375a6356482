"""Whole sessions on real parts: embedded Redis and worker, Docker boxes, a scripted endpoint."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.cluster.parts import Cluster
from coordinator.embedded import Embedded
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import Script, ScriptedEndpoint
from coordinator.session.approvals import Always, Approver
from coordinator.session.events import Event
from coordinator.session.limits import Limits
from coordinator.session.principal import LOCAL
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.runner import SessionRunner
from coordinator.session.workspace_choice import Wanted, choose
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from tests.cluster.machines import WORKER, Node, Server
from worker.contract import keys
from worker.contract.orders import Policy

AGENT_UID = 54_321


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of a user of its own, so that it can be bound."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a.txt").write_text("alpha\nbeta\n")
    (directory / "b.txt").write_text("gamma\n")
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            os.chown(path, AGENT_UID, AGENT_UID)
    return directory


Furnished = Callable[[], contextlib.AbstractContextManager[Path]]


@pytest.fixture
def state_dir(furnished_dir: Furnished) -> Iterator[Path]:
    """A directory whose path is short enough for sockets, with what a node of some age has in it."""
    with furnished_dir() as path:
        yield path


@contextlib.contextmanager
def private_cluster(state_dir: Path, until: Callable[..., None]) -> Iterator[Embedded]:
    """A private Redis and worker; nothing of it may be left afterwards."""
    running = Embedded(state_dir, dead_man_s=20)
    try:
        until(lambda: answers(running.redis_url), "the private Redis answers")
        yield running
    finally:
        running.close()
    assert not leftover_containers(running.node)
    assert list((state_dir / "runs").iterdir()) == []


@pytest.fixture(scope="module")
def embedded_of_module(
    furnished_dir: Furnished, docker_engine_or_skip: None, until: Callable[..., None]
) -> Iterator[Embedded]:
    """The private Redis and worker of all tests of a module that are marked `shared_node`."""
    with furnished_dir() as state_dir, private_cluster(state_dir, until) as running:
        yield running


@pytest.fixture
def embedded(request: pytest.FixtureRequest, until: Callable[..., None]) -> Iterator[Embedded]:
    """A private Redis and worker: the test's own, or its module's where it is marked `shared_node`."""
    if request.node.get_closest_marker("shared_node") is None:
        request.getfixturevalue("docker_engine_or_skip")
        with private_cluster(request.getfixturevalue("state_dir"), until) as running:
            yield running
        return
    running = request.getfixturevalue("embedded_of_module")
    # A test that failed before this one may have left some.
    before = set(leftover_containers(running.node))
    yield running
    until(lambda: set(leftover_containers(running.node)) <= before, "the test's boxes are gone")


def answers(redis_url: str) -> bool:
    """Whether a Redis is there."""
    with redis.Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def leftover_containers(node: str) -> list[str]:
    """Names of containers that carry the node's label, whatever state they are in."""
    with contextlib.closing(docker.from_env()) as client:
        found = client.containers.list(all=True, ignore_removed=True, filters={"label": f"sandhog.node={node}"})
        return [str(one.name) for one in found]


@pytest.fixture
async def cluster(embedded: Embedded) -> AsyncIterator[Cluster]:
    """The coordinator's shared parts on the embedded cluster."""
    async with open_cluster(embedded.redis_url, embedded.state_dir) as opened:
        yield opened


@pytest.fixture
def server(state_dir: Path, until: Callable[..., None]) -> Iterator[Server]:
    """A Redis of the test's own, which it may kill and start again."""
    directory = state_dir / "redis"
    directory.mkdir()
    server = Server(directory)
    server.start()
    until(lambda: answers(server.url), "Redis answers")
    yield server
    server.signal(signal.SIGCONT)
    server.kill()


Start = Callable[..., Node]


@pytest.fixture
def start(state_dir: Path, server: Server, until: Callable[..., None], docker_engine_or_skip: None) -> Iterator[Start]:
    """Starts nodes, each with settings of its own; nothing of any may be left."""
    started: list[Node] = []

    def start(name: str, *program: str, **settings: str) -> Node:
        variables = {f"SANDHOG_{key.upper()}": value for key, value in settings.items()}
        node = Node(f"{name}-{uuid.uuid4().hex[:6]}", state_dir, server.url, variables, program or WORKER)
        started.append(node)
        node.start()
        with redis.Redis.from_url(server.url) as client:

            def is_up() -> bool:
                assert node.process.poll() is None, node.log()
                return bool(client.exists(keys.lease(node.name)))

            until(is_up, f"{name} has its lease", 100.0)
        return node

    yield start
    for node in started:
        if node.process.poll() is None:
            node.process.terminate()
    for node in started:
        assert node.process.wait(60) in (0, -signal.SIGTERM, -signal.SIGKILL), node.log()
        assert not leftover_containers(node.name)


@dataclass
class Played:
    """A session that was run with a scripted model."""

    result: SessionResult
    requests: list[dict[str, object]]
    """Bodies of the model requests, in order."""
    events: list[Event] = field(default_factory=list)

    def answers(self) -> list[dict[str, object]]:
        """The `tool` messages of the last request, in order."""
        messages = self.requests[-1]["messages"]
        assert isinstance(messages, list)
        return [message for message in messages if message["role"] == "tool"]


@dataclass
class Stage:
    """Runs sessions on one cluster."""

    cluster: Cluster
    project: Path

    async def play(
        self,
        script: Script,
        *,
        policy: Policy = Policy.BOXED,
        copy: bool = False,
        approver: Approver | None = None,
        cancelled: asyncio.Event | None = None,
        image: str = DEFAULT_IMAGE,
        apply: bool = False,
        limits: Limits = Limits(steps=20),  # noqa: B008 - frozen
        principal: str = LOCAL,
        sinks: tuple[object, ...] = (),
        **more: Any,
    ) -> Played:
        """Run one session to its end; `more` is for its request."""
        wanted = Wanted(self.project, bind=not copy, copy=copy, policy=policy)
        owner = self.project.stat().st_uid
        chosen = choose(wanted, owner_uid=owner, own_uid=os.geteuid())
        request = SessionRequest("do it", chosen, image, limits, apply=apply, principal=principal, **more)
        events: list[Event] = []
        with ScriptedEndpoint(script) as endpoint:
            model = ModelClient(ModelSettings("scripted", base_url=endpoint.base_url))
            try:
                runner = SessionRunner(
                    request,
                    cluster=self.cluster,
                    model=model,
                    approver=approver or Always(),
                    sinks=[events.append, *sinks],  # type: ignore[list-item]
                )
                result = await runner.run(cancelled or asyncio.Event())
            finally:
                await model.close()
            return Played(result, list(endpoint.requests), events)


@pytest.fixture
def stage(cluster: Cluster, project: Path) -> Stage:
    """Sessions on the embedded cluster, working on `project`."""
    return Stage(cluster, project)


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of a plain web server with the repository org/repo, and its first commit."""
    work, bare = tmp_path / "work", tmp_path / "www" / "org" / "repo"
    work.mkdir()
    (work / "a.txt").write_text("first\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=work, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=work, check=True, capture_output=True, text=True).stdout
    (work / "a.txt").write_text("second\n")
    subprocess.run(["git", *who, "commit", "-qam", "second"], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, bare], check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    handler = functools.partial(Silent, directory=str(tmp_path / "www"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", commit.strip()
        server.shutdown()
