"""The line for a node's lanes, by a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import TimeoutError as RedisSilent

from coordinator.cluster import lanes as module
from coordinator.cluster.execute import Job
from coordinator.cluster.lanes import Lanes
from coordinator.cluster.store import LANE_TTL_S, Store, connect
from coordinator.ending import end
from coordinator.errors import RedisLost
from coordinator.session.partition import Travel
from coordinator.wiring import open_cluster
from tests.orders import call_order
from worker.contract import keys
from worker.contract.orders import CallKey, CallOutcome, NodeLife

NODE = NodeLife(node="a", incarnation="a-1", places=1, lanes=4)


def lanes_of(store: Store) -> Lanes:
    async def take(node: str, limit: int, holders: Sequence[str]) -> int:
        return (await store.take_lanes(node, limit, holders))[0]

    return Lanes(take, store.give_lanes)


@pytest.fixture
async def lanes(redis_url: str) -> AsyncIterator[Lanes]:
    client = connect(redis_url)
    store = Store(client)
    yield lanes_of(store)
    await client.aclose()


async def test_who_waits_comes_in_turn_and_only_the_first_asks(lanes: Lanes, redis_client: redis.Redis) -> None:
    calm = asyncio.Event()
    assert await lanes.take("a", 1, ["c0", "c0b"], calm) == 1
    came: list[str] = []

    async def wait(holder: str) -> None:
        assert await lanes.take("a", 1, [holder], calm) == 1
        came.append(holder)

    waiting = []
    for number in range(1, 31):
        waiting.append(asyncio.create_task(wait(f"c{number}")))
        await asyncio.sleep(0)
    before = int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"])
    # Ten looks of the first in line.
    await asyncio.sleep(10 * module.POLL_S)
    asked = int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]) - before
    assert 0 < asked <= 15, "the others ask too"
    for number in range(30):
        await lanes.give("a", f"c{number}")
        async with asyncio.timeout(30):
            while len(came) <= number:
                await asyncio.sleep(0.001)
    await asyncio.gather(*waiting)
    assert came == [f"c{number}" for number in range(1, 31)]


async def test_a_cancelled_call_leaves_the_line(lanes: Lanes) -> None:
    calm, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
    assert await lanes.take("a", 1, ["c0"], calm) == 1
    ahead = asyncio.create_task(lanes.take("a", 1, ["c1"], first))
    await asyncio.sleep(0)
    behind = asyncio.create_task(lanes.take("a", 1, ["c2"], second))
    broken_off = asyncio.create_task(lanes.take("a", 1, ["c3"], calm))
    last = asyncio.create_task(lanes.take("a", 1, ["c4"], calm))
    await asyncio.sleep(0)
    second.set()
    assert await asyncio.wait_for(behind, 30) == 0
    broken_off.cancel()
    first.set()
    assert await asyncio.wait_for(ahead, 30) == 0
    await lanes.give("a", "c0")
    assert await asyncio.wait_for(last, 30) == 1


async def test_a_turn_that_comes_to_one_who_is_broken_off_goes_on(lanes: Lanes) -> None:
    calm, first = asyncio.Event(), asyncio.Event()
    assert await lanes.take("a", 1, ["c0"], calm) == 1
    ahead = asyncio.create_task(lanes.take("a", 1, ["c1"], first))
    await asyncio.sleep(0)
    unlucky = asyncio.create_task(lanes.take("a", 1, ["c2"], calm))
    last = asyncio.create_task(lanes.take("a", 1, ["c3"], calm))
    await asyncio.sleep(0.01)
    first.set()
    await ahead
    # Its turn is being handed to it in this very moment.
    unlucky.cancel()
    await lanes.give("a", "c0")
    assert await asyncio.wait_for(last, 30) == 1


async def test_an_outage_is_waited_out_once_by_all_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "OUTAGE_S", 3.0)
    client = connect(f"unix://{tmp_path / 'nobody'}")
    store, calm = Store(client), asyncio.Event()
    lanes = lanes_of(store)
    # One after the other they would take a minute.
    async with asyncio.timeout(30):
        found = await asyncio.gather(
            *[lanes.take("a", 1, [f"c{number}"], calm) for number in range(20)], return_exceptions=True
        )
    assert [type(one) for one in found] == [RedisLost] * 20
    await client.aclose()


async def test_a_principal_with_one_call_waits_for_no_more_than_one_of_another_ones_hundred(lanes: Lanes) -> None:
    calm = asyncio.Event()
    assert await lanes.take("a", 1, ["a0"], calm, principal="a") == 1
    came: list[str] = []

    async def chain(holder: str, principal: str) -> None:
        assert await lanes.take("a", 1, [holder], calm, principal=principal) == 1
        came.append(holder)

    chains = [asyncio.create_task(chain(f"a{number}", "a")) for number in range(1, 101)]
    await asyncio.sleep(0)
    chains.append(asyncio.create_task(chain("b", "b")))
    # The first of the hundred asks Redis already, all others wait.
    await asyncio.sleep(2 * module.POLL_S)
    assert came == []
    before = "a0"
    async with asyncio.timeout(60):
        for number in range(1, 102):
            await lanes.give("a", before)
            while len(came) < number:
                await asyncio.sleep(0.001)
            before = came[-1]
    assert came[:2] == ["a1", "b"]
    assert came[2:] == [f"a{number}" for number in range(2, 101)]
    await asyncio.gather(*chains)


def held(redis_client: redis.Redis) -> dict[str, float]:
    """Who has a lane of the node, and until when."""
    found: Any = redis_client.zrange(keys.lanes("a"), 0, -1, withscores=True)
    return {holder.decode(): until for holder, until in found}


async def come(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_lanes_held_for_long_are_renewed_and_those_of_quick_calls_cost_nothing_more(
    lanes: Lanes, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 1.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    calm = asyncio.Event()
    assert await lanes.take("a", 2, ["long"], calm) == 1
    until = held(redis_client)["long"]
    keeping = asyncio.create_task(lanes.keep(lambda: "life"))
    before, began = int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]), time.monotonic()
    for number in range(100):
        assert await lanes.take("a", 2, [f"c{number}"], calm) == 1
        await lanes.give("a", f"c{number}")
    asked = int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]) - before
    assert asked <= 100 + (time.monotonic() - began) / module.RENEW_S + 1
    await come(lambda: held(redis_client)["long"] > until)
    # The clock of Redis makes a step, and somebody else gets the lane of a call that runs.
    redis_client.zadd(keys.lanes("a"), {"long": 1})
    assert await lanes.take("a", 1, ["other"], calm) == 1
    await come(lambda: held(redis_client).get("long", 0) >= until)
    assert set(held(redis_client)) == {"long", "other"}, "both run, and both count"
    await lanes.give("a", "long", "other")
    await end(keeping)
    assert held(redis_client) == {}


async def test_lanes_that_an_emptied_redis_lost_are_back_after_one_pace(
    lanes: Lanes, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 2.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "QUICK_S", 0.1)
    began = time.monotonic()
    keeping = asyncio.create_task(lanes.keep(lambda: "life"))
    # Held for less than a pace when that comes round.
    await asyncio.sleep(1.0)
    assert await lanes.take("a", 4, ["c"], asyncio.Event()) == 1
    redis_client.flushdb()
    await come(lambda: held(redis_client))
    assert time.monotonic() - began < 1.9 * module.RENEW_S
    await end(keeping)


async def test_lanes_are_written_back_in_another_life_of_redis(
    lanes: Lanes, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    life: list[str | None] = [None]
    keeping = asyncio.create_task(lanes.keep(lambda: life[-1]))
    assert await lanes.take("a", 4, ["c1", "c2"], asyncio.Event()) == 2
    life.append("one")
    await asyncio.sleep(0.1)
    redis_client.flushdb()
    await asyncio.sleep(0.1)
    assert held(redis_client) == {}, "the next pace is far"
    life.append("two")
    await come(lambda: set(held(redis_client)) == {"c1", "c2"})
    await end(keeping)


async def test_a_lane_that_is_given_back_while_it_is_renewed_stays_given_back(
    redis_url: str, redis_client: redis.Redis
) -> None:
    client = connect(redis_url)
    store, may_ask = Store(client), asyncio.Event()
    may_ask.set()

    async def take(node: str, limit: int, holders: Sequence[str]) -> int:
        await may_ask.wait()
        return (await store.take_lanes(node, limit, holders))[0]

    lanes = Lanes(take, store.give_lanes)
    assert await lanes.take("a", 4, ["c1", "c2"], asyncio.Event()) == 2
    may_ask.clear()
    renewing = asyncio.create_task(lanes.renew())
    await asyncio.sleep(0)
    await lanes.give("a", "c1")
    may_ask.set()
    assert await renewing
    assert set(held(redis_client)) == {"c2"}
    await client.aclose()


@pytest.mark.parametrize("travel", [Travel.CHAIN, Travel.GROUP])
async def test_a_running_stretch_keeps_its_lanes_and_one_that_is_broken_off_gives_them_back(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, travel: Travel
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.05)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    jobs = [Job(call_order(key=CallKey(session="s", generation=1, step=1, index=at)), 10.0) for at in range(3)]

    async def keep(outcome: CallOutcome) -> None:
        raise AssertionError(outcome)

    async with open_cluster(redis_url, tmp_path) as cluster:
        # Its node is waited for: the calls have their lanes, and do not run.
        running = asyncio.create_task(cluster.executor.run(travel, jobs, NODE, asyncio.Event(), keep))
        await come(lambda: held(redis_client))
        holders = held(redis_client)
        assert len(holders) == (1 if travel is Travel.CHAIN else 3)
        redis_client.zadd(keys.lanes("a"), dict.fromkeys(holders, 1))
        await come(lambda: all(until > LANE_TTL_S for until in held(redis_client).values()))
        await end(running)
        # A renewal may have been under way.
        await come(lambda: not held(redis_client))


@pytest.mark.parametrize("is_cut_off", [True, False])
async def test_a_request_for_lanes_that_redis_hears_only_after_they_were_given_back_takes_none(
    redis_url: str, redis_client: redis.Redis, is_cut_off: bool
) -> None:
    client = connect(redis_url)
    store, on_their_way = Store(client), list[Sequence[str]]()

    async def take(node: str, limit: int, holders: Sequence[str]) -> int:
        if not on_their_way:
            on_their_way.append(holders)
            if is_cut_off:
                raise RedisSilent
            await asyncio.sleep(3_600)
        return (await store.take_lanes(node, limit, holders))[0]

    lanes = Lanes(take, store.give_lanes)
    taking = asyncio.create_task(lanes.take("a", 4, ["c1", "c2"], asyncio.Event()))
    if is_cut_off:
        assert await taking == 2
    else:
        await come(lambda: on_their_way)
        await end(taking)
    await lanes.give("a", "c1", "c2")
    await store.take_lanes("a", 4, on_their_way[0])
    assert held(redis_client) == {}
    assert await lanes.take("a", 1, ["c3"], asyncio.Event()) == 1
    # Who was sure of it leaves nothing.
    await lanes.give("a", "c3")
    assert set(redis_client.zrange(keys.lanes_over("a"), 0, -1)) == {b"c1", b"c2"}
    assert 0 < int(redis_client.ttl(keys.lanes_over("a"))) <= LANE_TTL_S
    await client.aclose()


async def test_who_waits_no_more_gets_no_lane_by_an_earlier_request_that_redis_hears_only_now(
    redis_url: str, redis_client: redis.Redis
) -> None:
    client = connect(redis_url)
    store, cancelled, on_their_way = Store(client), asyncio.Event(), list[Sequence[str]]()

    async def take(node: str, limit: int, holders: Sequence[str]) -> int:
        if not on_their_way:
            on_their_way.append(holders)
            raise RedisSilent
        cancelled.set()
        return 0

    lanes = Lanes(take, store.give_lanes)
    assert await lanes.take("a", 1, ["c1"], cancelled) == 0
    await store.take_lanes("a", 1, on_their_way[0])
    assert held(redis_client) == {}
    await client.aclose()


async def test_a_lane_that_redis_was_not_there_to_take_back_is_given_back_though_no_other_call_comes_to_its_node(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "RENEW_S", 0.2)
    client = connect(redis_url)
    store, is_away = Store(client), [True]

    async def take(node: str, limit: int, holders: Sequence[str]) -> int:
        return (await store.take_lanes(node, limit, holders))[0]

    async def give(node: str, holders: Sequence[str], over: int) -> None:
        if is_away[0]:
            raise RedisSilent
        await store.give_lanes(node, holders, over)

    lanes = Lanes(take, give)
    assert await lanes.take("a", 4, ["c1"], asyncio.Event()) == 1
    await lanes.give("a", "c1")
    keeping = asyncio.create_task(lanes.keep(lambda: "life"))
    await asyncio.sleep(0.5)
    assert set(held(redis_client)) == {"c1"}
    is_away[0] = False
    await come(lambda: not held(redis_client))
    await end(keeping)
    await client.aclose()
