"""The reply reader on a real Redis: each reply reaches the one who expects it, and no garbage or cut ends it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from coordinator.cluster.collect import BLOCK_MS, ReplyReader
from coordinator.cluster.store import connect
from worker.contract import keys
from worker.contract.replies import REPLY_FIELD, Reply

STREAM = keys.reply_stream("c1")
WAIT_S = 5.0


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[ReplyReader]:
    client = connect(redis_url)
    async with ReplyReader(client, "c1") as reader:
        yield reader
    await client.aclose()


def append(client: redis.Redis, task_id: str, result: str = "") -> None:
    entry = json.dumps({"task_id": task_id, "status": "SUCCESS", "result": result})
    client.xadd(STREAM, {REPLY_FIELD: entry})


async def come(future: "asyncio.Future[Reply]") -> Reply:
    return await asyncio.wait_for(future, WAIT_S)


async def reading(client: redis.Redis) -> int:
    """Return how many connections are blocked in a read; waits until there is one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            info: Any = client.info("clients")
            if info["blocked_clients"]:
                return int(info["blocked_clients"])
            await asyncio.sleep(0.005)


async def test_a_reply_reaches_the_one_who_expects_it(reader: ReplyReader, redis_client: redis.Redis) -> None:
    one, other = reader.expect("t1"), reader.expect("t2")

    append(redis_client, "t2", "two")
    append(redis_client, "t1", "one")

    assert await come(one) == Reply("t1", True, "one", "")
    assert await come(other) == Reply("t2", True, "two", "")


async def test_a_reply_that_was_there_before_the_reader_is_read(redis_url: str, redis_client: redis.Redis) -> None:
    append(redis_client, "t1", "one")
    client = connect(redis_url)
    reader = ReplyReader(client, "c1")
    future = reader.expect("t1")
    async with reader:
        assert (await come(future)).result == "one"
    await client.aclose()


async def test_more_replies_than_one_read_takes_all_come(reader: ReplyReader, redis_client: redis.Redis) -> None:
    futures = [reader.expect(f"t{number}") for number in range(1_000)]
    with redis_client.pipeline() as pipe:
        for number in range(1_000):
            entry = json.dumps({"task_id": f"t{number}", "status": "SUCCESS", "result": str(number)})
            pipe.xadd(STREAM, {REPLY_FIELD: entry})
        pipe.execute()

    replies = [await come(future) for future in futures]

    assert [reply.result for reply in replies] == [str(number) for number in range(1_000)]


async def test_reading_goes_on_where_a_cut_connection_left_it(
    reader: ReplyReader, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    before = reader.expect("t1")
    append(redis_client, "t1", "one")
    await come(before)
    after = reader.expect("t2")
    assert await reading(redis_client) == 1

    with redis_client.pipeline() as pipe:
        # At once, so that the entry is there before the reader is back.
        pipe.client_kill_filter(_type="normal", skipme=True)
        pipe.xadd(STREAM, {REPLY_FIELD: json.dumps({"task_id": "t2", "status": "SUCCESS", "result": "two"})})
        pipe.execute()

    assert (await come(after)).result == "two"
    assert "the reply stream is away" in caplog.text


async def test_many_cuts_lose_nothing(reader: ReplyReader, redis_client: redis.Redis) -> None:
    for number in range(5):
        future = reader.expect(f"t{number}")
        await reading(redis_client)
        redis_client.client_kill_filter(_type="normal", skipme=True)
        append(redis_client, f"t{number}", str(number))
        assert (await come(future)).result == str(number)


async def test_a_stream_that_begins_anew_by_a_clock_that_was_set_back_is_read(
    reader: ReplyReader, redis_client: redis.Redis
) -> None:
    before, after = reader.expect("t1"), reader.expect("t2")
    entry = json.dumps({"task_id": "t1", "status": "SUCCESS", "result": "one"})
    redis_client.xadd(STREAM, {REPLY_FIELD: entry}, id="99999999999999-0")
    await come(before)
    redis_client.delete(STREAM)
    append(redis_client, "t2", "two")

    assert (await asyncio.wait_for(after, 4 * WAIT_S)).result == "two"


async def test_what_nobody_expects_is_dropped(reader: ReplyReader, redis_client: redis.Redis) -> None:
    append(redis_client, "unknown", "zero")
    future = reader.expect("t1")
    append(redis_client, "t1", "one")

    assert (await come(future)).result == "one"


async def test_a_forgotten_reply_is_dropped(reader: ReplyReader, redis_client: redis.Redis) -> None:
    forgotten, later = reader.expect("t1"), reader.expect("t2")
    reader.forget("t1")
    reader.forget("never expected")
    append(redis_client, "t1", "one")
    append(redis_client, "t2", "two")

    await come(later)
    assert not forgotten.done()


async def test_a_reply_whose_waiter_went_away_hurts_nobody(reader: ReplyReader, redis_client: redis.Redis) -> None:
    gone, later = reader.expect("t1"), reader.expect("t2")
    gone.cancel()
    append(redis_client, "t1", "one")
    append(redis_client, "t2", "two")

    assert (await come(later)).result == "two"


@pytest.mark.parametrize(
    "fields",
    [
        {REPLY_FIELD: "garbage"},
        {REPLY_FIELD: b"\xff\xfe\x00"},
        {REPLY_FIELD: "[" * 200_000},
        {REPLY_FIELD: '{"task_id":["t1"],"status":"SUCCESS"}'},
        {"other": "x"},
    ],
)
async def test_garbage_is_passed_over(reader: ReplyReader, redis_client: redis.Redis, fields: dict[Any, Any]) -> None:
    future = reader.expect("t1")
    redis_client.xadd(STREAM, fields)
    append(redis_client, "t1", "one")

    assert (await come(future)).result == "one"


async def test_the_first_state_of_a_task_wins(reader: ReplyReader, redis_client: redis.Redis) -> None:
    first, later = reader.expect("t1"), reader.expect("t2")
    append(redis_client, "t1", "one")
    append(redis_client, "t1", "two")
    append(redis_client, "t2", "three")

    await come(later)
    assert (await come(first)).result == "one"


async def test_expecting_twice_is_one_expectation(reader: ReplyReader) -> None:
    assert reader.expect("t1") is reader.expect("t1")


async def test_what_was_read_does_not_pile_up(
    reader: ReplyReader, redis_client: redis.Redis, until: Callable[..., None]
) -> None:
    future = reader.expect("last")
    for number in range(1_000):
        append(redis_client, f"t{number}", "x" * 100)
    append(redis_client, "last")
    await come(future)
    await reading(redis_client)

    # Redis trims whole nodes of a stream, of a hundred entries each.
    until(lambda: redis_client.xlen(STREAM) <= 200, "the stream is trimmed")


async def test_another_coordinators_replies_are_not_ours(reader: ReplyReader, redis_client: redis.Redis) -> None:
    future = reader.expect("t1")
    entry = json.dumps({"task_id": "t1", "status": "SUCCESS", "result": "two"})
    redis_client.xadd(keys.reply_stream("c2"), {REPLY_FIELD: entry})
    append(redis_client, "t1", "one")

    assert (await come(future)).result == "one"


@pytest.mark.usefixtures("redis_client")
async def test_leaving_at_any_moment_ends_the_reader_at_once(redis_url: str) -> None:
    """The client swallows a cancellation that comes in the moment of an answer."""
    for turns in range(40):
        client = connect(redis_url, blocking_s=BLOCK_MS / 1000)
        async with asyncio.timeout(WAIT_S):
            async with ReplyReader(client, "c1"):
                for _ in range(turns):
                    await asyncio.sleep(0)
        await client.aclose()
