"""The stack of deploy/compose.yaml for real: built, brought up, used, hurt, upgraded, taken down."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import docker
import httpx2
import pytest

from tests.conftest import Until
from tests.deploy.stacks import ROOT, Stack, directory, environment, leftovers, up

pytestmark = pytest.mark.long

STACK = "sandhog-test"
SLOW: list[dict[str, Any]] = [
    {"text": "I write.", "calls": [{"name": "Bash", "arguments": {"command": "echo x >> log; sleep 6; cat log"}}]},
    {"text": "Done."},
]
"""Long enough that a worker can be ended while it runs."""


@pytest.fixture(scope="module")
def stack(docker_engine_or_skip: None) -> Iterator[Stack]:
    with directory() as home:
        flags = ("--overlay", str(ROOT / "tests/deploy/compose.test.yaml"))
        with up(Stack(STACK, environment(STACK, home, SLOW, "SANDHOG_PORT"), flags)) as stack:
            yield stack


def worker(client: docker.DockerClient) -> Any:
    (found,) = client.containers.list(
        filters={"label": [f"com.docker.compose.project={STACK}", "com.docker.compose.service=worker"]}
    )
    return found


@pytest.mark.docker
@pytest.mark.slow  # images are built and containers started, several times over
@pytest.mark.timeout(900)
def test_a_stack_is_used_hurt_upgraded_and_taken_down(stack: Stack, until: Until) -> None:
    client = docker.from_env(timeout=60)

    # Used: by a token, through an ACL user of each role.
    assert httpx2.get(stack.url + "/v1/sessions", trust_env=False).status_code == 401
    assert stack.compose("token").strip() == (stack.secrets / "api_token").read_text()
    first = stack.ended(stack.started())
    assert (first["status"], first["text"]) == ("completed", "Done."), first
    assert "+x" in stack.ask("GET", f"/v1/sessions/{first['session_id']}/patch").text

    # Hurt: the worker is killed under a command and comes back by itself; the command ran once.
    hurt = stack.started()
    until(lambda: stack.runs_a_command(hurt), "the command has begun")
    os.kill(int(worker(client).attrs["State"]["Pid"]), signal.SIGKILL)
    ended = stack.ended(hurt)
    assert ended["status"] == "completed", ended
    assert stack.ask("GET", f"/v1/sessions/{hurt}/patch").text.count("\n+x") == 1

    # Upgraded under load: both containers are made anew, the box and its command go on.
    before = worker(client).id
    moved = stack.started()
    until(lambda: stack.runs_a_command(moved), "the command has begun")
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
    assert leftovers(client, STACK) == []
