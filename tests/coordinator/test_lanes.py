"""The line for a node's lanes, by a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import redis

from coordinator.cluster import lanes as module
from coordinator.cluster.lanes import Lanes
from coordinator.cluster.store import Store, connect
from coordinator.errors import RedisLost
from worker.contract import keys


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
