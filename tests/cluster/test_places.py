"""A node's places, which Redis alone knows, when Redis or the node forgets them: a real worker, Redis and boxes."""

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.errors import NodeTrouble
from coordinator.session.call_events import CallFinished
from coordinator.session.session_events import Notice
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Stage, Start, answers, leftover_containers
from tests.cluster.machines import Node, Server
from worker.contract import keys
from worker.contract.orders import BoxOrder, NodeLife, WorkspaceMode

pytestmark = pytest.mark.docker

Until = Callable[..., None]
OFTEN = ("-P", "-c", "import worker.machine as m; m.UPKEEP_S = 0.2; from worker.__main__ import cli; cli()", "run")
"""A worker that looks after its boxes all the time."""


@pytest.fixture
async def cluster(server: Server, state_dir: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(server.url, state_dir) as opened:
        yield opened


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def order(project: Path, state_dir: Path) -> Callable[[str], BoxOrder]:
    def make(session: str) -> BoxOrder:
        session_dir = state_dir / "sessions" / session
        (session_dir / "spill").mkdir(parents=True, exist_ok=True)
        return BoxOrder(
            session=session,
            generation=1,
            session_dir=str(session_dir),
            image="sandhog-box:latest",
            workspace=str(project),
            workspace_mode=WorkspaceMode.COPY,
        )

    return make


MakeOrder = Callable[[str], BoxOrder]


def holders(client: redis.Redis, node: Node) -> set[object]:
    return set(client.zrange(keys.places(node.name), 0, -1))


async def begin(cluster: Cluster, box: BoxOrder) -> NodeLife:
    """A session's place and box, without a loop."""
    life = await cluster.placement.place(box.session)
    await cluster.placement.prepare(box, life)
    return life


@pytest.mark.parametrize("is_another_life", [False, True])
async def test_a_full_node_stays_full_when_redis_forgets_its_places(
    cluster: Cluster,
    client: redis.Redis,
    server: Server,
    start: Start,
    order: MakeOrder,
    until: Until,
    is_another_life: bool,
) -> None:
    # Its upkeep comes too late here: what counts is that it is said before anybody can be sent to the node.
    node = start("full", places="1")
    life = await begin(cluster, order("one"))
    assert holders(client, node) == {b"one"}

    if is_another_life:
        server.kill()
        shutil.rmtree(server.directory / "appendonlydir")
        server.start()
        until(lambda: answers(server.url), "Redis is back")
    else:
        client.flushall()
    waiting = asyncio.create_task(cluster.placement.place("two"))
    await asyncio.sleep(4.0)

    assert not waiting.done()
    assert holders(client, node) == {b"one"}
    # Not for ever: with its box it gives its place back.
    await cluster.placement.finish(order("one"), life, apply=False)
    assert (await asyncio.wait_for(waiting, 60)).node == node.name
    assert holders(client, node) == {b"two"}


async def test_a_place_is_renewed_as_long_as_its_box_stands(
    cluster: Cluster, client: redis.Redis, start: Start, order: MakeOrder, until: Until
) -> None:
    node = start("old", *OFTEN, places="1")
    life = await begin(cluster, order("one"))
    # As after a day.
    client.zadd(keys.places(node.name), {"one": time.time() + 5})

    def left_s() -> float:
        return (client.zscore(keys.places(node.name), "one") or 0.0) - time.time()

    until(lambda: left_s() > keys.PLACE_TTL_S - 60, "its place is renewed", 4.0)
    await cluster.placement.finish(order("one"), life, apply=False)
    assert await cluster.placement.withdraw("one", life.node, away_s=60)
    await asyncio.sleep(1.0)
    assert holders(client, node) == set()


async def test_a_session_that_was_idle_stands_in_line_for_its_place(
    cluster: Cluster, client: redis.Redis, start: Start, project: Path, until: Until
) -> None:
    node, goes_on = start("idle", *OFTEN, places="1", idle_s="1"), threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        replies = sum(message["role"] == "assistant" for message in messages)
        if replies == 1:
            goes_on.wait(100)
        return Turn(calls=(ScriptedCall("Bash", {"command": "pwd"}),)) if replies < 2 else Turn("done")

    playing = asyncio.create_task(Stage(cluster, project).play(script))
    await asyncio.to_thread(until, lambda: bool(holders(client, node)), "it has its place")
    await asyncio.to_thread(until, lambda: not holders(client, node), "its place is given back")
    assert (await cluster.placement.place("two")).node == node.name
    before = asyncio.create_task(cluster.placement.place("three"))
    await asyncio.to_thread(until, lambda: client.hlen(keys.LINE_TICKETS) == 1, "one waits")
    goes_on.set()
    await asyncio.to_thread(until, lambda: client.hlen(keys.LINE_TICKETS) == 2, "it waits behind that", 20.0)
    await cluster.placement.withdraw("two", node.name, away_s=60)
    assert (await asyncio.wait_for(before, 60)).node == node.name
    assert not playing.done()
    await cluster.placement.withdraw("three", node.name, away_s=60)

    played = await asyncio.wait_for(playing, 60)
    assert played.result.status == "completed"
    first, second = [event for event in played.events if isinstance(event, CallFinished)]
    assert (first.status, second.status) == ("success", "success")
    notes = [event.text for event in played.events if isinstance(event, Notice)]
    assert "Waiting for a place: number 2 of 2." in notes
    assert "without a call" in str(played.answers()[-1]["content"])


async def test_a_node_that_was_restarted_starts_no_box_without_a_place(
    cluster: Cluster, client: redis.Redis, start: Start, order: MakeOrder, until: Until
) -> None:
    node = start("again", *OFTEN, places="1", idle_s="1")
    await begin(cluster, order("one"))
    until(lambda: not holders(client, node), "its place is given back")
    assert (await cluster.placement.place("two")).node == node.name
    # One that ends in order would take its places with it.
    before = client.get(keys.lease(node.name))
    node.process.kill()
    node.process.wait(60)
    node.start()
    until(lambda: client.get(keys.lease(node.name)) not in (None, before), "it is back", 100.0)

    (life,) = [view.life for view in await cluster.store.nodes()]
    with pytest.raises(NodeTrouble, match="every place"):
        await cluster.placement.prepare(order("one"), life)
    assert not leftover_containers(node.name)

    await cluster.placement.withdraw("two", node.name, away_s=60)
    await cluster.placement.prepare(order("one"), await cluster.placement.place("one", node.name))
    assert holders(client, node) == {b"one"}
    await cluster.placement.finish(order("one"), life, apply=False)
