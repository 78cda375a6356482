"""Which node a session gets, stays with or waits for, as the nodes come and go."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest
import redis

from coordinator.cluster.collect import BLOCK_MS, ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.placement import Placement
from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import PlaceWanted, Turns
from coordinator.cluster.watch import Watch
from coordinator.errors import NoBox, NodeTrouble, NoSource
from coordinator.wiring import open_cluster
from tests.conftest import Until
from worker.app import create_app
from worker.contract import keys
from worker.contract.orders import BoxOrder, NodeLife, PrepareOutcome, WorkspaceMode

HOST, OTHER = "host-1", "host-2"


@pytest.fixture
async def placement(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    monkeypatch.setattr("coordinator.cluster.placement.TOOLS_WAIT_S", 0.6)
    client, reading = connect(redis_url), connect(redis_url, blocking_s=BLOCK_MS / 1000)
    store, dispatcher = Store(client), Dispatcher(create_app(redis_url), "c")
    async with ReplyReader(reading, "c") as reader, Watch(store) as watch:
        yield Placement(store=store, reader=reader, dispatcher=dispatcher, watch=watch, turns=Turns(client))
    dispatcher.close()
    await client.aclose()
    await reading.aclose()


Lives = Callable[..., NodeLife]


@pytest.fixture
def lives(redis_client: redis.Redis) -> Lives:
    """Writes a node down, with or without its lease."""

    def write(
        name: str, host: str, *, is_leased: bool = True, state: Literal["ready", "draining"] = "ready"
    ) -> NodeLife:
        life = NodeLife(node=name, incarnation=f"{name}-1", places=1, lanes=1, host=host, freeze_s=0.5, state=state)
        redis_client.set(keys.node(name), life.model_dump_json())
        redis_client.sadd(keys.NODES, name)
        if is_leased:
            redis_client.set(keys.lease(name), life.incarnation)
        return life

    return write


async def test_a_bound_session_goes_to_another_node_of_its_machine_only(
    placement: Placement, lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.cluster.placement.NODE_WAIT_S", 0.6)
    home = lives("home", HOST, is_leased=False)
    lives("far", OTHER)
    with pytest.raises(NoBox, match="the directory is on it"):
        await placement.place("s", "home", PlaceWanted(bound_to=home))
    assert (await placement.place("copy", "home", PlaceWanted())).node == "far"

    lives("near", HOST)
    await asyncio.sleep(0.3)
    assert (await placement.place("s", "home", PlaceWanted(bound_to=home))).node == "near"


async def test_a_bound_session_waits_for_a_node_of_its_machine_that_has_left(
    placement: Placement, lives: Lives
) -> None:
    home = NodeLife(node="home", incarnation="home-1", places=1, lanes=1, host=HOST)
    lives("far", OTHER)
    placing = asyncio.create_task(placement.place("s", "home", PlaceWanted(bound_to=home)))
    # Far longer than nodes without its directory are waited for to change.
    await asyncio.wait({placing}, timeout=2.0)
    assert not placing.done()
    lives("home", HOST)
    assert (await asyncio.wait_for(placing, 60)).node == "home"


async def test_a_node_that_has_come_back_just_now_is_not_passed_over(placement: Placement, lives: Lives) -> None:
    lives("beside", OTHER)
    lives("home", HOST, is_leased=False)
    # The list that all who wait in this process look at.
    assert [view.is_leased for view in await placement._nodes()] == [True, False]
    lives("home", HOST)
    assert (await placement.place("s", "home")).node == "home"


async def test_a_node_that_is_ending_is_not_left_before_it_has(
    placement: Placement, lives: Lives, redis_client: redis.Redis
) -> None:
    lives("beside", OTHER)
    lives("home", HOST, state="draining")
    placing = asyncio.create_task(placement.place("s", "home"))
    await asyncio.wait({placing}, timeout=1.0)
    assert not placing.done(), "its box may be at work there"
    redis_client.delete(keys.lease("home"), keys.node("home"))
    assert (await asyncio.wait_for(placing, 60)).node == "beside"


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_session_sends_an_ending_node_nothing_until_it_is_back_or_has_left(
    placement: Placement, lives: Lives, redis_client: redis.Redis, until: Until, comes_back: bool
) -> None:
    home = lives("home", HOST, state="draining")
    watch = placement._watch
    watch.follow("home", home.incarnation)
    await asyncio.to_thread(until, lambda: watch.health("home").is_ending, "it is known to end")
    outlasting = asyncio.create_task(placement.outlasts("home", asyncio.Event()))
    await asyncio.wait({outlasting}, timeout=0.5)
    assert not outlasting.done()
    if comes_back:
        lives("home", HOST)
    else:
        redis_client.delete(keys.lease("home"), keys.node("home"))
    assert await asyncio.wait_for(outlasting, 60) is comes_back


async def test_a_node_that_an_emptied_redis_does_not_know_yet_is_waited_for(
    placement: Placement, lives: Lives, redis_client: redis.Redis, until: Until
) -> None:
    watch = placement._watch
    await asyncio.to_thread(until, lambda: watch.run_id is not None, "the watch has looked")
    # As a Redis does that was restarted without what it held.
    watch._run_id = "an earlier life"
    lives("beside", OTHER)
    await asyncio.to_thread(until, lambda: watch.is_quiet, "it is seen as another one")
    placing = asyncio.create_task(placement.place("s", "home"))
    await asyncio.wait({placing}, timeout=1.0)
    assert not placing.done()
    lives("home", HOST)
    assert (await asyncio.wait_for(placing, 60)).node == "home"


async def test_a_node_on_another_volume_gets_no_session(
    placement: Placement, lives: Lives, redis_client: redis.Redis
) -> None:
    placement._volume = "ours"
    there = lives("there", OTHER).model_copy(update={"volume": "theirs"})
    redis_client.set(keys.node("there"), there.model_dump_json())
    with pytest.raises(NoBox, match=r"No worker sees the volume of this coordinator \(there: another one\)"):
        await placement.place("s")

    # One of an earlier release does not say.
    for name, volume in (("old", ""), ("here", "ours")):
        redis_client.delete(keys.lease("old"))
        life = lives(name, HOST).model_copy(update={"volume": volume})
        redis_client.set(keys.node(name), life.model_dump_json())
        await asyncio.sleep(0.3)
        assert (await placement.place(f"on {name}")).node == name


async def test_a_bound_session_waits_for_its_node_that_is_restarted(
    placement: Placement, redis_client: redis.Redis, lives: Lives
) -> None:
    home = lives("home", HOST, is_leased=False)
    slow = home.model_copy(update={"freeze_s": 600.0})
    redis_client.set(keys.node("home"), slow.model_dump_json())
    lives("far", OTHER)
    placing = asyncio.create_task(placement.place("s", "home", PlaceWanted(bound_to=home)))
    # Far longer than nodes without its directory are waited for to change.
    await asyncio.wait({placing}, timeout=2.0)
    assert not placing.done()
    redis_client.set(keys.lease("home"), home.incarnation)
    assert (await asyncio.wait_for(placing, 60)).node == "home"


@pytest.mark.parametrize(
    ("fault", "expected"), [({"is_passing": True}, NodeTrouble), ({"is_own_fault": True}, NoSource), ({}, NoBox)]
)
async def test_what_a_node_says_of_a_box_tells_trouble_from_a_refusal(
    placement: Placement,
    redis_client: redis.Redis,
    lives: Lives,
    tmp_path: Path,
    until: Until,
    fault: dict[str, bool],
    expected: type,
) -> None:
    node = lives("n", HOST)
    asking = asyncio.create_task(placement.prepare(box(tmp_path), node))
    # The order is there, and is answered as a node would.
    await asyncio.to_thread(until, lambda: bool(redis_client.llen(keys.queue("n"))), "the node is asked")
    outcome = PrepareOutcome(session="s", error="no", **fault)
    answer = {"task_id": "s/prepare/1", "status": "SUCCESS", "result": outcome.to_text()}
    redis_client.xadd(keys.reply_stream("c"), {"d": json.dumps(answer)})
    with pytest.raises(NoBox) as refused:
        await asyncio.wait_for(asking, 60)
    assert type(refused.value) is expected


async def test_a_node_that_was_gone_for_too_long_is_trouble(
    placement: Placement, lives: Lives, redis_client: redis.Redis, tmp_path: Path
) -> None:
    node = lives("n", HOST)
    assert (await placement.place("s")).node == "n"
    redis_client.delete(keys.lease("n"))
    with pytest.raises(NodeTrouble, match="it has been gone"):
        await asyncio.wait_for(placement.prepare(box(tmp_path), node), 60)


async def test_a_place_that_was_given_back_is_had_again_in_turn_on_its_node_alone(
    placement: Placement, lives: Lives, redis_client: redis.Redis
) -> None:
    home, limited = lives("home", HOST), PlaceWanted(most=1)
    assert (await placement.place("idle", None, limited)).node == "home"
    redis_client.zrem(keys.places("home"), "idle")
    assert (await placement.place("two")).node == "home"
    stays = PlaceWanted(bound_to=home, is_nowhere_else=True)
    before = asyncio.create_task(placement.place("three", "home", stays))
    await waits(redis_client, 1)
    told: list[str] = []
    again = asyncio.create_task(placement.regain("idle", home, limited, asyncio.Event(), told.append))
    await waits(redis_client, 2)
    # It has room, and is on the same machine.
    lives("near", HOST)
    redis_client.zrem(keys.places("home"), "two")
    assert (await asyncio.wait_for(before, 60)).node == "home"
    await asyncio.wait({again}, timeout=0.5)
    assert not again.done()
    redis_client.zrem(keys.places("home"), "three")
    await asyncio.wait_for(again, 60)
    assert redis_client.zrange(keys.places("home"), 0, -1) == [b"idle"]
    assert redis_client.zrange(f"{keys.PLACES_OF}local", 0, -1) == [b"idle"]
    assert told == ["Waiting for a place: number 2 of 2."]


async def test_a_place_is_waited_for_no_more_once_nobody_wants_it_or_its_node_is_lost(
    placement: Placement, lives: Lives, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.cluster.placement.NODE_WAIT_S", 0.6)
    home, stop = lives("home", HOST), asyncio.Event()
    lives("far", OTHER)
    redis_client.zadd(keys.places("home"), {"other": 4_000_000_000})
    again = asyncio.create_task(placement.regain("s", home, PlaceWanted(), stop))
    await waits(redis_client, 1)
    stop.set()
    await asyncio.wait_for(again, 5)

    again = asyncio.create_task(placement.regain("s", home, PlaceWanted(), asyncio.Event()))
    redis_client.delete(keys.lease("home"))
    await asyncio.wait_for(again, 60)
    assert redis_client.zrange(keys.places("far"), 0, -1) == []


async def waits(redis_client: redis.Redis, tickets: int) -> None:
    """Come back once so many sessions stand in the line."""
    async with asyncio.timeout(30):
        while redis_client.hlen(keys.LINE_TICKETS) != tickets:
            await asyncio.sleep(0.01)


async def test_what_counts_for_a_ceiling_is_kept_as_long_as_the_coordinator_lives(
    redis_url: str, redis_client: redis.Redis, lives: Lives, tmp_path: Path
) -> None:
    lives("home", HOST)
    async with open_cluster(redis_url, tmp_path) as cluster:
        await cluster.placement.place("s", None, PlaceWanted(principal="p", most=1))
        redis_client.delete(f"{keys.PLACES_OF}p", keys.PLACE_HOLDERS)
        async with asyncio.timeout(30):
            while not redis_client.exists(f"{keys.PLACES_OF}p"):
                await asyncio.sleep(0.02)
        assert await cluster.placement.withdraw("s", "home", away_s=60)
        assert redis_client.keys(f"{keys.PLACES_OF}*") == []


def box(directory: Path) -> BoxOrder:
    return BoxOrder(
        session="s",
        generation=1,
        session_dir=str(directory),
        image="i",
        workspace=str(directory),
        workspace_mode=WorkspaceMode.COPY,
    )
