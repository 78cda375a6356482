"""The stack of deploy/compose.yaml for real: built, brought up, used, hurt, upgraded, taken down."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx2
import pytest

from tests.conftest import Until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
STACK = "sandhog-test"
COMPOSE_S = 600
SLOW = [
    {"text": "I write.", "calls": [{"name": "Bash", "arguments": {"command": "echo x >> log; sleep 6; cat log"}}]},
    {"text": "Done."},
]
"""Long enough that a worker can be ended while it runs."""


@dataclass(frozen=True)
class Stack:
    """A stack of this module's own, and how it is spoken to."""

    environment: dict[str, str]
    url: str

    def compose(self, *arguments: str, check: bool = True) -> str:
        overlay = ["--overlay", str(ROOT / "tests/deploy/compose.test.yaml")]
        argv = ["bash", str(ROOT / "deploy/compose.sh"), *overlay, *arguments]
        run = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=COMPOSE_S, check=False)
        assert not check or run.returncode == 0, run.stderr[-3000:]
        return run.stdout

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        token = self.compose("token").strip()
        return httpx2.request(
            method,
            self.url + path,
            headers={"Authorization": f"Bearer {token}"},
            timeout=120,
            trust_env=False,
            **options,
        )

    def started(self) -> str:
        """Return the id of a session that has begun its command."""
        answer = self.ask("POST", "/v1/sessions", json={"prompt": "write"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["session_id"])

    def ended(self, session_id: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/sessions/{session_id}?wait=100")
        return dict(answer.json())


@pytest.fixture(scope="module")
def stack(docker_engine_or_skip: None) -> Iterator[Stack]:
    # Not below the tests' temporary directory: another user than root must get there.
    home = Path(tempfile.mkdtemp(prefix="sandhog-stack-", dir="/var/tmp"))
    home.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = home / "script.json"
    script.write_text(json.dumps(SLOW))
    environment = {name: value for name, value in os.environ.items() if not re.match("SANDHOG_|OPENAI_", name)}
    environment |= {
        "SANDHOG_STACK": STACK,
        "SANDHOG_STATE_DIR": str(home / "state"),
        "SANDHOG_SECRETS": str(home / "secrets"),
        "SANDHOG_PORT": str(port),
        "SANDHOG_PULL_S": "15",
        "SCRIPT": str(script),
    }
    stack = Stack(environment, f"http://127.0.0.1:{port}")
    try:
        stack.compose("build")
        stack.compose("up", "--detach", "--wait")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5", check=False)
        shutil.rmtree(home, ignore_errors=True)


def worker(client: docker.DockerClient) -> Any:
    (found,) = client.containers.list(
        filters={"label": [f"com.docker.compose.project={STACK}", "com.docker.compose.service=worker"]}
    )
    return found


def runs_a_command(stack: Stack, session_id: str) -> Callable[[], bool]:
    return lambda: (Path(stack.environment["SANDHOG_STATE_DIR"]) / "sessions" / session_id / "work" / "log").exists()


@pytest.mark.docker
@pytest.mark.slow  # images are built and containers started, several times over
@pytest.mark.timeout(900)
def test_a_stack_is_used_hurt_upgraded_and_taken_down(stack: Stack, until: Until) -> None:
    client = docker.from_env(timeout=60)

    # Used: by a token, through an ACL user of each role.
    assert httpx2.get(stack.url + "/v1/sessions", trust_env=False).status_code == 401
    first = stack.ended(stack.started())
    assert (first["status"], first["text"]) == ("completed", "Done."), first
    assert "+x" in stack.ask("GET", f"/v1/sessions/{first['session_id']}/patch").text

    # Hurt: the worker is killed under a command and comes back by itself; the command ran once.
    hurt = stack.started()
    until(runs_a_command(stack, hurt), "the command has begun")
    os.kill(int(worker(client).attrs["State"]["Pid"]), signal.SIGKILL)
    ended = stack.ended(hurt)
    assert ended["status"] == "completed", ended
    assert stack.ask("GET", f"/v1/sessions/{hurt}/patch").text.count("\n+x") == 1

    # Upgraded under load: both containers are made anew, the box and its command go on.
    before = worker(client).id
    moved = stack.started()
    until(runs_a_command(stack, moved), "the command has begun")
    stack.compose("up", "--detach", "--wait", "--force-recreate", "--no-deps", "worker")
    assert worker(client).id != before
    ended = stack.ended(moved)
    assert ended["status"] == "completed", ended
    assert stack.ask("GET", f"/v1/sessions/{moved}/patch").text.count("\n+x") == 1

    # Hardened: only the worker has the engine's socket, only the coordinator is published, nobody may write its root.
    for container in client.containers.list(filters={"label": f"com.docker.compose.project={STACK}"}):
        service = container.labels["com.docker.compose.service"]
        sources = [mount["Source"] for mount in container.attrs["Mounts"]]
        assert any("docker.sock" in source for source in sources) == (service == "worker"), service
        assert bool(container.attrs["HostConfig"]["PortBindings"]) == (service == "coordinator"), service
        assert container.attrs["HostConfig"]["ReadonlyRootfs"], service
        environment = " ".join(container.attrs["Config"]["Env"])
        assert "redis://" not in environment, service

    # Taken down, with a session running: nothing is left.
    stack.started()
    stack.compose("down", "--volumes", "--timeout", "60")
    left: dict[str, str | list[str] | bool] = {"label": f"com.docker.compose.project={STACK}"}
    assert client.containers.list(all=True, filters=left) == []
    assert client.networks.list(filters=left) == []
    assert client.volumes.list(filters=left) == []
    boxes = client.containers.list(all=True, filters={"name": "sandhog-"})
    assert [box.name for box in boxes if f"{STACK}-worker" in str(box.labels)] == []
