"""Waiting for a Redis that is away, as long as an outage is tolerated; for what may be asked again."""

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from worker.contract import keys

_T = TypeVar("_T")

PAUSE_S = 0.2


def patiently(ask: Callable[[], _T]) -> _T:
    """Return what Redis answers.

    Raises:
        redis.RedisError: it stayed away longer than an outage may last, or it refuses.
    """
    deadline = time.monotonic() + keys.OUTAGE_S
    while True:
        try:
            return ask()
        except (redis.ConnectionError, redis.TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
