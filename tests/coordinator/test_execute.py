"""Calls that wait for a lane, or for their session's place, before they are sent; a real Redis, and no node."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import redis

from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.execute import Executor
from coordinator.cluster.settle import Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from coordinator.ending import end
from coordinator.session.partition import Travel
from coordinator.wiring import open_cluster
from tests.coordinator.test_chain_breaks import NODE, Nowhere, job
from worker.contract import keys
from worker.contract.orders import CallKey, CallOutcome


@pytest.mark.parametrize("travel", [Travel.GROUP, Travel.CHAIN])
async def test_calls_that_wait_for_a_lane_are_waited_for_no_more_once_all_are_cancelled(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path, travel: Travel
) -> None:
    redis_client.zadd(keys.lanes(NODE.node), {f"other {number}": 4_000_000_000 for number in range(NODE.lanes)})
    client = connect(redis_url)
    store = Store(client)
    watch, reader = Watch(store), ReplyReader(client, "c")
    watch.follow(NODE.node, NODE.incarnation)
    settler = Settler(store=store, reader=reader, dispatcher=Nowhere(), watch=watch)
    executor = Executor(store=store, dispatcher=Nowhere(), settler=settler, watch=watch)
    jobs, unwanted, outcomes = [job(index, tmp_path, 1) for index in range(2)], asyncio.Event(), list[CallOutcome]()

    async def keep(outcome: CallOutcome) -> None:
        outcomes.append(outcome)

    running = asyncio.create_task(executor.run(travel, jobs, NODE, asyncio.Event(), keep, unwanted))
    done, _ = await asyncio.wait({running}, timeout=0.3)
    assert not done, "no lane is free"
    for one in jobs:
        one.stopped.set()
    unwanted.set()
    await asyncio.wait_for(running, 5)
    await client.aclose()
    words = "A person cancelled this call before it ran."
    assert [(one.key.index, one.reason) for one in outcomes] == [(0, words), (1, words)]


@pytest.mark.parametrize("travel", [Travel.GROUP, Travel.CHAIN])
async def test_a_session_whose_place_was_given_back_has_it_again_before_its_calls_have_a_lane(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path, travel: Travel
) -> None:
    regained, may_go_on, jobs = [0], asyncio.Event(), [job(index, tmp_path, 1) for index in range(2)]

    async def regain(stop: asyncio.Event) -> None:
        regained[0] += 1
        await may_go_on.wait()

    async def keep(outcome: CallOutcome) -> None:
        raise AssertionError(outcome)

    async with open_cluster(redis_url, tmp_path) as cluster:
        run = partial(cluster.executor.run, travel, jobs, NODE, asyncio.Event(), keep, None)
        waiting = asyncio.create_task(run(regain))
        async with asyncio.timeout(30):
            while not regained[0]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not redis_client.exists(keys.lanes(NODE.node)), "whoever waits for a place holds no lane"
        may_go_on.set()
        await has_lanes(redis_client)
        assert regained == [1], "one that went again is left to the node"
        await end(waiting)

        redis_client.zadd(keys.places(NODE.node), {"s": 4_000_000_000})
        running = asyncio.create_task(run(regain))
        await has_lanes(redis_client)
        assert regained == [1]
        await end(running)


async def has_lanes(redis_client: redis.Redis) -> None:
    async with asyncio.timeout(30):
        while not redis_client.exists(keys.lanes(NODE.node)):
            await asyncio.sleep(0.01)


async def test_a_quarter_of_the_lanes_is_left_to_reading_calls(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    redis_client.zadd(keys.lanes(NODE.node), {f"long {number}": 4_000_000_000 for number in range(3)})
    jobs = [job(index, tmp_path, 1) for index in range(2)]

    async def keep(outcome: CallOutcome) -> None:
        raise AssertionError(outcome)

    def taken() -> int:
        return int(redis_client.zcard(keys.lanes(NODE.node)))

    async with open_cluster(redis_url, tmp_path) as cluster:
        run = partial(cluster.executor.run, node=NODE, cancelled=asyncio.Event(), on_outcome=keep)
        chain = asyncio.create_task(run(Travel.CHAIN, jobs[:1]))
        done, _ = await asyncio.wait({chain}, timeout=0.5)
        assert (done, taken()) == (set(), 3), "the last lane is not for what may take long"
        reading = asyncio.create_task(run(Travel.GROUP, jobs[1:]))
        async with asyncio.timeout(30):
            while taken() < 4:
                await asyncio.sleep(0.01)
        assert redis_client.zscore(keys.lanes(NODE.node), str(jobs[1].order.key)) is not None
        await end(chain, reading)


class Deaf(Nowhere):
    """Sends to a node that does not hear what is said to it first."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []
        self.is_heard = asyncio.Event()

    async def cancel(self, node: str, call_keys: Sequence[CallKey]) -> bool:
        self.said.append([str(key) for key in call_keys])
        if len(self.said) == 2:
            self.is_heard.set()
        return True


async def test_calls_that_nobody_waits_for_are_told_to_end_more_than_once(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    client = connect(redis_url)
    store = Store(client)
    watch, node = Watch(store), Deaf()
    settler = Settler(store=store, reader=ReplyReader(client, "c"), dispatcher=node, watch=watch)
    running, never = (job(index, tmp_path, 1).order.key for index in range(2))
    redis_client.set(keys.claim(str(running)), "a worker")
    async with Executor(store=store, dispatcher=node, settler=settler, watch=watch) as executor:
        async with asyncio.timeout(0.9):
            await executor.give_up(NODE.node, [running, never], asyncio.Event())
        async with asyncio.timeout(10):
            await node.is_heard.wait()
    assert node.said == [[str(running)]] * 2, "what has not begun never will, and whoever ends says nothing more"
    await client.aclose()
