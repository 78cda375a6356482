"""The container engine is restarted under a session: an engine of the test's own, with a node on it."""

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import pytest
import redis

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Stage
from tests.cluster.machines import Node, Server
from tests.conftest import Until, without_server
from worker.contract import keys

IMAGE = "engine-restart:latest"
WAIT_S = 120.0
# An engine that ends in order waits for its containers.
IN_ORDER = pytest.param(signal.SIGTERM, id="in_order", marks=pytest.mark.long)


class Engine:
    """A Docker engine apart from the machine's own; without networks, which boxes do not need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"unix://{directory / 's'}"
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "settings.json").write_text("{}")

    def start(self, until: Until) -> None:
        # In a network namespace of its own: an engine without a bridge removes the one that it finds.
        argv = [
            "unshare",
            "--net",
            "dockerd",
            "--host",
            self.url,
            "--config-file",
            str(self.directory / "settings.json"),
        ]
        argv += ["--data-root", str(self.directory / "data"), "--exec-root", str(self.directory / "x")]
        argv += ["--pidfile", str(self.directory / "pid"), "--bridge", "none", "--iptables=false", "--ip-forward=false"]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        until(self.answers, "the engine answers", WAIT_S)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
        # The Docker client leaves its socket behind where nobody listens.
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(10)
            try:
                asking.connect(self.url.removeprefix("unix://"))
                asking.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
                return b"200 OK" in asking.recv(4096)
            except OSError:
                return False

    def end(self, number: int, until: Until) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(WAIT_S)
        # What a killed engine leaves makes the next one wait for it.
        below = self.directory / "x" / "containerd"
        if (below / "containerd.pid").exists():
            beside = Path("/proc") / (below / "containerd.pid").read_text()
            until(lambda: not beside.exists(), "what belongs to the engine ends with it", WAIT_S)
        for left in (*below.glob("containerd.*"), self.directory / "pid", self.directory / "s"):
            if left.name != "containerd.toml":
                left.unlink(missing_ok=True)

    def bring_image(self) -> None:
        """One static program, which is also the shell."""
        busybox = shutil.which("busybox")
        assert busybox is not None
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            tar.add(busybox, "bin/busybox")
            for name in ("sh", "sleep", "cat", "touch"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        with contextlib.closing(docker.APIClient(self.url, timeout=60)) as client:
            client.import_image_from_data(data.getvalue(), *IMAGE.split(":"))

    def containers(self) -> list[str]:
        with contextlib.closing(docker.APIClient(self.url, timeout=60)) as client:
            return [str(one["Id"]) for one in client.containers(all=True)]


@pytest.fixture
def engine(state_dir: Path, until: Until) -> Iterator[Engine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("busybox") is None:
        without_server("an engine of the test's own needs root, dockerd and a static busybox")
    directory = state_dir / "e"
    directory.mkdir()
    engine = Engine(directory)
    try:
        engine.start(until)
        engine.bring_image()
        yield engine
        assert engine.containers() == []
    finally:
        engine.end(signal.SIGTERM, until)


@pytest.fixture
def node(state_dir: Path, server: Server, engine: Engine, until: Until) -> Iterator[Node]:
    name = f"n-{uuid.uuid4().hex[:6]}"
    node = Node(name, state_dir, server.url, {"DOCKER_HOST": engine.url, "SANDHOG_DEAD_MAN_S": "60"})
    node.start()
    try:
        with redis.Redis.from_url(server.url) as client:

            def is_up() -> bool:
                assert node.process.poll() is None, node.log()
                return bool(client.exists(keys.lease(name)))

            until(is_up, "the node has its lease", WAIT_S)
        yield node
    finally:
        node.process.terminate()
        code = node.process.wait(WAIT_S)
    assert code == 0, node.log()


@pytest.fixture
async def stage(server: Server, state_dir: Path, project: Path) -> AsyncIterator[Stage]:
    async with open_cluster(server.url, state_dir) as cluster:
        yield Stage(cluster, project)


def until_it_works(messages: Sequence[Mapping[str, Any]]) -> Turn:
    """A model that asks for a command, and then for another one until it gets its answer."""
    answered = [json.loads(str(message["content"])) for message in messages if message["role"] == "tool"]
    command = "echo again >> log; cat log" if answered else "echo x >> log; touch begun; sleep 300; echo y >> log"
    if answered and answered[-1]["status"] == "success":
        return Turn("done")
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


@pytest.mark.docker
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [IN_ORDER, pytest.param(signal.SIGKILL, id="killed")])
async def test_a_session_goes_on_when_its_engine_was_restarted(
    number: signal.Signals, stage: Stage, node: Node, engine: Engine, until: Until
) -> None:
    playing = asyncio.create_task(stage.play(until_it_works, image=IMAGE))
    await asyncio.to_thread(until, (stage.project / "begun").exists, "the command runs", WAIT_S)
    await asyncio.to_thread(engine.end, number, until)
    await asyncio.to_thread(engine.start, until)
    played = await asyncio.wait_for(playing, WAIT_S)

    assert played.result.status == "completed", played.result
    first, *others = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert (first["status"], first["error"]["code"]) == ("error", "BOX_LOST"), first
    assert others[-1]["text"].split()[-2:] == ["x", "again"], others
    # What was refused while the engine was away left nothing.
    assert (stage.project / "log").read_text().split() == ["x", "again"]
