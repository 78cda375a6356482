"""Waiting for a Redis that is away: what a session asks of it is asked again until it answers.

Everything asked this way may be repeated: the scripts of the contract are made for it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisSilent

from coordinator.errors import RedisLost
from worker.contract import keys

_T = TypeVar("_T")

FIRST_PAUSE_S = 0.02
LAST_PAUSE_S = 0.5
CANCELLED_S = 5.0
"""How long a cancelled session goes on asking."""


async def patiently(
    ask: Callable[[], Awaitable[_T]], cancelled: asyncio.Event, patience_s: float = keys.OUTAGE_S
) -> _T:
    """Return what Redis answers, asked again while it is away: by default as long as an outage may last.

    Raises:
        RedisLost: it stayed away, at most some seconds from the session's cancellation on, or it refuses.
    """
    began = time.monotonic()
    cancelled_at: float | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except (RedisAway, RedisSilent) as exc:
            now = time.monotonic()
            if cancelled.is_set() and cancelled_at is None:
                cancelled_at = now
            is_over = cancelled_at is not None and now - cancelled_at > CANCELLED_S
            if is_over or now - began > patience_s:
                raise RedisLost(f"Redis does not answer: {exc}.") from exc
        except RedisError as exc:
            raise RedisLost(f"Redis refuses what it is asked: {exc}.") from exc
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LAST_PAUSE_S)
