"""Nodes that come and go under running sessions; several on one host are the same as one on each of several."""

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.events import BoxReplaced, SessionPlaced
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Played, Stage, leftover_containers
from tests.cluster.machines import Node, Server
from tests.conftest import Until
from worker.contract import keys

pytestmark = pytest.mark.docker

WAIT_S = 100.0
Start = Callable[..., Node]


@pytest.fixture
def start(state_dir: Path, server: Server, until: Until, docker_engine_or_skip: None) -> Iterator[Start]:
    """Starts nodes, each with settings of its own; nothing of any may be left."""
    started: list[Node] = []

    def start(name: str, **settings: str) -> Node:
        variables = {f"SANDHOG_{key.upper()}": value for key, value in settings.items()}
        node = Node(f"{name}-{uuid.uuid4().hex[:6]}", state_dir, server.url, variables)
        started.append(node)
        node.start()
        with redis.Redis.from_url(server.url) as client:

            def is_up() -> bool:
                assert node.process.poll() is None, node.log()
                return bool(client.exists(keys.lease(node.name)))

            until(is_up, f"{name} has its lease", WAIT_S)
        return node

    yield start
    for node in started:
        if node.process.poll() is None:
            node.process.terminate()
    for node in started:
        assert node.process.wait(60) in (0, -signal.SIGTERM, -signal.SIGKILL), node.log()
        assert not leftover_containers(node.name)


@pytest.fixture
async def stage(server: Server, state_dir: Path, project: Path) -> AsyncIterator[Stage]:
    async with open_cluster(server.url, state_dir) as cluster:
        yield Stage(cluster, project)


def bash(command: str, **arguments: Any) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command, **arguments}),))


def in_turn(turns: list[Turn]) -> Callable[[list[dict[str, Any]]], Turn]:
    """A script that goes on also behind a message to the model."""
    return lambda messages: turns[sum(message["role"] == "assistant" for message in messages)]


def contents(played: Played) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def placed(events: list[Any]) -> list[str]:
    """The nodes that a session was on, in order."""
    return [event.node for event in events if isinstance(event, SessionPlaced)]


async def there(directory: Path, name: str) -> Path:
    """Wait until a private copy below the volume has a file of this name."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for pattern in (f"sessions/*/work/{name}", f"sessions/*/disk/work/{name}"):
                found = await asyncio.to_thread(lambda: list(directory.glob(pattern)))  # noqa: B023
                if found:
                    return found[0]
            await asyncio.sleep(0.05)


async def gone(claim: Callable[[], object]) -> None:
    """Wait until there is nothing of this any more."""
    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(claim):
            await asyncio.sleep(0.2)


@pytest.mark.timeout(240)
async def test_a_session_whose_node_is_lost_goes_on_at_another(stage: Stage, state_dir: Path, start: Start) -> None:
    """The lost node's box stands still before the other one writes, and is ended when the node comes back."""
    nodes = {node.name: node for node in (start("a", freeze_s="2"), start("b", freeze_s="2"))}
    seen: list[Any] = []
    ticking = bash("while true; do echo t >> ticks; sleep 0.1; done", background=True)
    counts = "cat log; wc -l < ticks; sleep 1; wc -l < ticks"
    turns = [
        ticking,
        bash("echo x >> log; touch begun; sleep 300"),
        bash(counts),
        bash("touch again; until [ -e go ]; do sleep 0.1; done; echo y >> log"),
        Turn("done"),
    ]
    playing = asyncio.create_task(stage.play(in_turn(turns), copy=True, sinks=(seen.append,)))
    await there(state_dir, "begun")
    first = nodes[placed(seen)[0]]
    first.process.kill()
    await asyncio.to_thread(first.process.wait)

    again = await there(state_dir, "again")
    # Back at last, it ends its box, whose session is another one's by now.
    first.start()
    await gone(lambda: leftover_containers(first.name))
    (again.parent / "go").touch()
    played = await playing

    assert played.result.status == "completed", played.result
    assert len(placed(played.events)) == 2
    assert set(placed(played.events)) == set(nodes)
    _, lost, counted, last = contents(played)
    assert lost["error"]["code"] == "OUTCOME_UNKNOWN", lost
    log, before, after = counted["text"].split()
    assert (log, before) == ("x", after), "nothing writes there but the session's present box"
    assert last["status"] == "success", last
    assert [one for one in played.events if isinstance(one, BoxReplaced)]
    assert "fresh sandbox" in str(played.requests[-1]["messages"])
    assert "+x\n+y" in (played.result.patch or "")
