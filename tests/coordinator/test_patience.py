"""Waiting for a Redis that is away, with failures as the client raises them."""

import asyncio
import time

import pytest
import redis.exceptions

from coordinator.cluster import patience
from coordinator.cluster.patience import patiently
from coordinator.errors import RedisLost


async def test_it_asks_until_there_is_an_answer() -> None:
    said: list[Exception | int] = [redis.exceptions.ConnectionError("gone"), redis.exceptions.TimeoutError("silent"), 7]
    answers = iter(said)

    async def ask() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await patiently(ask, asyncio.Event()) == 7


async def test_its_patience_ends() -> None:
    async def ask() -> None:
        raise redis.exceptions.ConnectionError("gone")

    with pytest.raises(RedisLost, match="gone"):
        await patiently(ask, asyncio.Event(), 0.1)


async def test_a_cancelled_session_has_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "CANCELLED_S", 0.2)
    cancelled, began = asyncio.Event(), time.monotonic()
    asyncio.get_running_loop().call_later(0.1, cancelled.set)

    async def ask() -> None:
        raise redis.exceptions.ConnectionError("gone")

    with pytest.raises(RedisLost):
        await patiently(ask, cancelled)
    assert 0.3 <= time.monotonic() - began < 60


async def test_a_refusal_is_not_asked_again() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise redis.exceptions.ResponseError("MISCONF no room")

    with pytest.raises(RedisLost, match="no room"):
        await patiently(ask, asyncio.Event())
    assert asked == 1
