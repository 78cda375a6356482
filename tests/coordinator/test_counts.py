"""What a principal has and has made, counted for all servers by a real Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from coordinator.cluster.counts import HOUR_S, LIVE_TTL_S, Counts
from coordinator.cluster.store import connect
from worker.contract import keys


@pytest.fixture
async def servers(redis_url: str) -> AsyncIterator[list[Counts]]:
    """Three servers, each with connections of its own."""
    clients = [connect(redis_url) for _ in range(3)]
    yield [Counts(client) for client in clients]
    for client in clients:
        await client.aclose()


@pytest.mark.parametrize("bounds", [{"most_created": 7, "most_live": None}, {"most_created": None, "most_live": 7}])
async def test_of_many_that_ask_at_once_no_more_than_the_bound_have_room(
    servers: list[Counts], bounds: dict[str, int | None]
) -> None:
    asked = [servers[n % 3].take("p", f"s{n}", **bounds) for n in range(90)]
    taken = await asyncio.gather(*asked)
    assert sum(not one.used_up for one in taken) == 7
    other = await servers[0].take("other", "o", **bounds)
    assert other.used_up == "", "each principal has a count of its own"


async def test_one_session_is_counted_once_however_often_it_asks(servers: list[Counts]) -> None:
    first = await servers[0].take("p", "s", most_created=1, most_live=1)
    again = await servers[1].take("p", "s", most_created=1, most_live=1)
    assert (first.used_up, again.used_up) == ("", "")
    await servers[1].undo(again, "s")
    assert (await servers[2].take("p", "t", most_created=1, most_live=None)).used_up == "created"
    assert (await servers[2].take("p", "t", most_created=None, most_live=1)).used_up == "live"
    await servers[0].undo(first, "s")
    assert (await servers[2].take("p", "t", most_created=1, most_live=1)).used_up == ""


async def test_what_is_used_up_counts_nothing_at_all(servers: list[Counts], redis_client: redis.Redis) -> None:
    await servers[0].take("p", "s", most_created=5, most_live=1)
    assert (await servers[0].take("p", "t", most_created=5, most_live=1)).used_up == "live"
    assert redis_client.zcard(keys.created("p")) == 1


async def test_an_hour_later_there_is_room_and_nothing_is_left(
    servers: list[Counts], redis_client: redis.Redis
) -> None:
    now = int(redis_client.time()[0])
    redis_client.zadd(keys.created("p"), {"old": now - HOUR_S - 1, "older": now - HOUR_S + 100, "new": now - 10})
    full = await servers[0].take("p", "s", most_created=1, most_live=None)
    assert full.used_up == "created"
    assert HOUR_S - 20 < full.ask_again_s <= HOUR_S - 9, "when the bound is kept again, not when the first one leaves"
    assert (await servers[0].take("p", "s", most_created=3, most_live=2)).used_up == ""
    assert redis_client.zrange(keys.created("p"), 0, -1) == [b"older", b"new", b"s"]
    left = [redis_client.ttl(key) for key in (keys.created("p"), keys.live("p"))]
    assert left[0] in range(HOUR_S - 5, HOUR_S + 1)
    assert left[1] in range(LIVE_TTL_S - 5, LIVE_TTL_S + 1)


async def test_a_session_counts_until_it_ends_or_nobody_counts_it_anew(
    servers: list[Counts], redis_client: redis.Redis
) -> None:
    await servers[0].renew("p", ["a", "b"])
    assert (await servers[1].take("p", "c", most_created=None, most_live=2)).used_up == "live"
    await servers[1].ended("p", "a")
    assert (await servers[1].take("p", "c", most_created=None, most_live=2)).used_up == ""
    redis_client.zadd(keys.live("p"), {"b": int(redis_client.time()[0]) - 1})
    assert (await servers[1].take("p", "d", most_created=None, most_live=2)).used_up == ""
    for session in ("c", "d"):
        await servers[0].ended("p", session)
    assert redis_client.keys("sandhog:*") == []
