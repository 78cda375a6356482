"""Lanes: how much a node does at once, for all sessions and coordinators together.

Of those of this coordinator that wait for one node only the first in line asks Redis: hundreds that ask by turns would
cost more than the calls themselves, and whoever asks at the right moment would pass those that came before. The line
is fair between principals.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from redis.exceptions import RedisError

from coordinator.cluster.patience import patiently
from coordinator.errors import RedisLost
from coordinator.in_turn import InTurn
from worker.contract import keys

log = logging.getLogger(__name__)

POLL_S = 0.02
"""Between two looks whether another coordinator gave a lane back."""
RENEW_S = 30.0
"""How often lanes are renewed. Far more often than they lapse: a Redis that was emptied, or a step of its host's clock,
by which all of them do, is mended soon."""
QUICK_S = 1.0
"""Those of calls that take less are most likely given back before they could be renewed."""
LOOK_S = 1.0
"""Between two looks whether any are to be renewed."""
NO_LIMIT = 1 << 31

Take = Callable[[str, int, Sequence[str]], Awaitable[int]]
"""Asks Redis, by node and limit, for as many lanes as there are holders; returns how many it got."""


class Lanes:
    """Takes and gives back lanes for one coordinator."""

    def __init__(
        self,
        take: Take,
        give: Callable[[str, Sequence[str], int], Awaitable[None]],
    ) -> None:
        """`take` and `give` ask Redis, as `Store.take_lanes` and `Store.give_lanes`."""
        self._ask_take, self._ask_give = take, give
        self._lines = defaultdict[tuple[str, int], _Line](_Line)
        """By node and limit: who is in front asks, the others wait behind."""
        self._given: dict[str, asyncio.Event] = {}
        self._owed: dict[str, set[str]] = {}
        """By node: holders whose lanes Redis was not there to take back."""
        self._unsure: set[str] = set()
        """Holders for whom Redis was asked without an answer: it may hear that after they gave their lanes back."""
        self._held = defaultdict[str, dict[str, float]](dict)
        """By node: when each holder got its lane."""
        self._lost_at = -math.inf

    async def take(
        self,
        node: str,
        limit: int,
        holders: Sequence[str],
        cancelled: asyncio.Event,
        *,
        principal: str = "",
        ask: Take | None = None,
    ) -> int:
        """Take lanes for as many of the holders, from the first, as fit below the limit.

        Waits until there is room for one at least, in turn with other principals' calls; returns 0 only once
        `cancelled` is set. `ask` asks Redis for these alone, and what it raises ends the wait.

        Raises:
            RedisLost: Redis stayed away.
        """
        came_at = time.monotonic()
        line = self._lines[node, limit]
        if not await line.come_first(principal, cancelled):
            return 0
        try:
            while not cancelled.is_set():
                # Whoever stood in line while one in front waited out the outage does not wait once more.
                patience_s = 0.0 if self._lost_at > came_at else keys.OUTAGE_S
                asking = partial(self._asked, ask or self._ask_take, node, limit, holders)
                got = await patiently(asking, cancelled, patience_s)
                if got:
                    self._held[node].update(dict.fromkeys(holders[:got], time.monotonic()))
                    return got
                await self._until_given(node)
            if not self._unsure.isdisjoint(holders):
                await self.give(node, *holders)
            return 0
        except RedisLost:
            self._lost_at = time.monotonic()
            raise
        finally:
            line.go_on()

    async def _asked(self, ask: Take, node: str, limit: int, holders: Sequence[str]) -> int:
        try:
            return await ask(node, limit, holders)
        except (RedisError, asyncio.CancelledError):
            self._unsure.update(holders)
            raise

    async def give(self, node: str, *holders: str) -> None:
        """Give lanes back, with those that Redis was not there to take; a holder that has none is passed over."""
        owed, held = self._owed.setdefault(node, set()), self._held[node]
        owed.update(holders)
        for holder in holders:
            held.pop(holder, None)
        unsure = owed & self._unsure
        giving = [*unsure, *owed - unsure]
        try:
            await self._ask_give(node, giving, len(unsure))
        except RedisError as exc:
            log.warning("lanes could not be given back yet", extra={"calls": holders, "error": str(exc)})
        else:
            owed.difference_update(giving)
            self._unsure -= unsure
            if node in self._given:
                self._given[node].set()

    async def keep(self, life: Callable[[], str | None]) -> None:
        """Keep what calls hold, without end: renewed at a pace, and written back at once in another life of Redis.

        Args:
            life: The life of Redis as it is known now; None before it is.
        """
        kept_in, kept_at = life(), time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            present, now = life(), time.monotonic()
            kept_in = kept_in or present
            if present == kept_in and now - kept_at < RENEW_S:
                continue
            if await self.renew(QUICK_S if present == kept_in else 0.0):
                kept_in, kept_at = present, now

    async def renew(self, held_s: float = 0.0) -> bool:
        """Write back the lanes that are held for so long, or longer; False where Redis was not there.

        There is no limit for it: those calls run, whoever has taken their lanes meanwhile. What Redis was not there to
        take back is given back too: no later call of this coordinator's may come to that node.
        """
        for node in [node for node, owed in self._owed.items() if owed]:
            await self.give(node)
        before = time.monotonic() - held_s
        for node, held in list(self._held.items()):
            renewing = [holder for holder, since in held.items() if since <= before]
            if not renewing:
                continue
            try:
                await self._ask_take(node, NO_LIMIT, renewing)
            except RedisError as exc:
                log.warning("lanes were not renewed", extra={"calls": renewing, "error": str(exc)})
                return False
            finally:
                # What was given back meanwhile may have been written after that.
                if ended := [holder for holder in renewing if holder not in held]:
                    await self.give(node, *ended)
        return True

    async def _until_given(self, node: str) -> None:
        given = self._given.setdefault(node, asyncio.Event())
        given.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(given.wait(), POLL_S)


class _Line:
    """Who waits for the lanes of one node, principals in turn. One is in front at a time."""

    def __init__(self) -> None:
        self._has_front = False
        self._waiting = InTurn[asyncio.Future[None]]()

    async def come_first(self, principal: str, cancelled: asyncio.Event) -> bool:
        """Wait until one is in front, and must let the next one go on; False when `cancelled` is set before."""
        if not self._has_front:
            self._has_front = True
            self._waiting.had_turn(principal)
            return True
        turn = asyncio.get_running_loop().create_future()
        stop = asyncio.create_task(cancelled.wait())
        self._waiting.join(turn, principal)
        has_turn = False
        try:
            await asyncio.wait({turn, stop}, return_when=asyncio.FIRST_COMPLETED)
            has_turn = turn.done()
            return has_turn
        finally:
            stop.cancel()
            # A turn that came while this was broken off goes to the next one.
            if not has_turn and not self._waiting.leave(turn):
                self.go_on()

    def go_on(self) -> None:
        """Let the next one come to the front."""
        found = self._waiting.next()
        self._has_front = found is not None
        if found is not None:
            found[1].set_result(None)
