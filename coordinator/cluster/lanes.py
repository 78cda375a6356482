"""Lanes: how much a node does at once, for all sessions and coordinators together.

Of those of this coordinator that wait for one node only the first in line asks Redis: hundreds that ask by turns would
cost more than the calls themselves, and whoever asks at the right moment would pass those that came before.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from redis.exceptions import RedisError

from coordinator.cluster.patience import patiently
from coordinator.errors import RedisLost
from worker.contract import keys

log = logging.getLogger(__name__)

POLL_S = 0.02
"""Between two looks whether another coordinator gave a lane back."""


class Lanes:
    """Takes and gives back lanes for one coordinator."""

    def __init__(
        self,
        take: Callable[[str, int, Sequence[str]], Awaitable[int]],
        give: Callable[[str, Sequence[str]], Awaitable[None]],
    ) -> None:
        """`take` and `give` ask Redis, as `Store.take_lanes` and `Store.give_lanes`."""
        self._ask_take, self._ask_give = take, give
        self._lines: dict[tuple[str, int], asyncio.Lock] = {}
        """By node and limit: who is in front asks, the others wait behind."""
        self._given: dict[str, asyncio.Event] = {}
        self._owed: dict[str, set[str]] = {}
        """By node: holders whose lanes Redis was not there to take back."""
        self._lost_at = -math.inf

    async def take(self, node: str, limit: int, holders: Sequence[str], cancelled: asyncio.Event) -> int:
        """Take lanes for as many of the holders, from the first, as fit below the limit.

        Waits until there is room for one at least; returns 0 only once `cancelled` is set.

        Raises:
            RedisLost: Redis stayed away.
        """
        came_at = time.monotonic()
        line = self._lines.setdefault((node, limit), asyncio.Lock())
        if not await _is_first(line, cancelled):
            return 0
        try:
            while not cancelled.is_set():
                # Whoever stood in line while one in front waited out the outage does not wait once more.
                patience_s = 0.0 if self._lost_at > came_at else keys.OUTAGE_S
                ask = partial(self._ask_take, node, limit, holders)
                got = await patiently(ask, cancelled, patience_s)
                if got:
                    return got
                await self._until_given(node)
            return 0
        except RedisLost:
            self._lost_at = time.monotonic()
            raise
        finally:
            line.release()

    async def give(self, node: str, holder: str) -> None:
        """Give a lane back, with those that Redis was not there to take."""
        owed = self._owed.setdefault(node, set())
        owed.add(holder)
        giving = list(owed)
        try:
            await self._ask_give(node, giving)
        except RedisError as exc:
            log.warning("a lane could not be given back yet", extra={"call_id": holder, "error": str(exc)})
        else:
            owed.difference_update(giving)
            if node in self._given:
                self._given[node].set()

    async def _until_given(self, node: str) -> None:
        given = self._given.setdefault(node, asyncio.Event())
        given.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(given.wait(), POLL_S)


async def _is_first(line: asyncio.Lock, cancelled: asyncio.Event) -> bool:
    """Wait for one's turn; the lock is held when it has come, and it has not when `cancelled` is set before."""
    if not line.locked():
        return await line.acquire()
    turn, stop = asyncio.create_task(line.acquire()), asyncio.create_task(cancelled.wait())
    has_turn = False
    try:
        await asyncio.wait({turn, stop}, return_when=asyncio.FIRST_COMPLETED)
        has_turn = turn.done()
        return has_turn
    finally:
        stop.cancel()
        # A turn that came while this was broken off goes to the next one.
        if not has_turn and not turn.cancel():
            line.release()
