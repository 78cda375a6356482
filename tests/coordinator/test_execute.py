"""Calls that wait for a lane of a node that has none free, cancelled by a person; a real Redis, and no node."""

import asyncio
from pathlib import Path

import pytest
import redis

from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.execute import Executor
from coordinator.cluster.settle import Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from coordinator.session.partition import Travel
from tests.coordinator.test_chain_breaks import NODE, Nowhere, job
from worker.contract import keys
from worker.contract.orders import CallOutcome


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
