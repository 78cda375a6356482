"""How many requests an endpoint gets at once: a place for each, in the order of asking.

All sessions of a process that use one endpoint share one limiter. How many places there are is found out: one more for
each reply until the endpoint says that it has too much to do, then half as many, then slowly more again, slowest around
the number that was too much the last time. A request that waits here has not been sent: its wait is no failed try.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush

MAX_REQUESTS = 512
"""Requests under way at once to one endpoint, unless a setting says otherwise."""
FIRST_PLACES = 8.0
"""Places before anything is known of the endpoint."""
MOST_PAUSE_S = 60.0
"""The longest that one answer holds up all sessions."""
_SLOW = 0.1
"""Around the number that was too much, this much of a place is added for as many replies as there are places."""


@dataclass(order=True)
class _Waiting:
    ticket: int
    admitted: "asyncio.Future[None]" = field(compare=False)


@dataclass
class EndpointLimiter:
    """Hands out the places of one endpoint. For one event loop."""

    max_requests: int = MAX_REQUESTS
    """Never more than this at once."""
    clock: Callable[[], float] = time.monotonic
    in_flight: int = 0
    """Requests under way."""
    refusals: int = 0
    """Answers that said: too much."""
    waited_s: float = 0.0
    """Sum of all waits for a place."""
    _places: float = FIRST_PLACES
    _too_many: float | None = None
    _is_starting: bool = True
    _halved_at: float = float("-inf")
    _paused_until: float = float("-inf")
    _queue: list[_Waiting] = field(default_factory=list)
    _tickets: int = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def places(self) -> int:
        """How many may be under way now."""
        return max(1, min(self.max_requests, int(self._places)))

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def ticket(self) -> int:
        """A place in the queue; one request keeps it through all its tries."""
        self._tickets += 1
        return self._tickets

    @asynccontextmanager
    async def place(self, ticket: int) -> AsyncIterator[float]:
        """Holds a place for the block's time; yields how many seconds it was waited for."""
        asked = self.clock()
        await self._admitted(ticket)
        waited_s = self.clock() - asked
        self.waited_s += waited_s
        try:
            yield waited_s
        finally:
            self.in_flight -= 1
            self._admit()

    def replied(self) -> None:
        """A reply came whole."""
        if self._is_starting:
            self._places = min(self._places + 1, float(self.max_requests))
            return
        near = self._too_many is not None and abs(self._places - self._too_many) <= 1.5
        if self._too_many is not None and self._places > self._too_many + 1.5:
            self._too_many = None
        self._places = min(self._places + (_SLOW if near else 1.0) / self._places, float(self.max_requests))

    def refused(self, sent_at: float, pause_s: float | None) -> None:
        """The endpoint said that it has too much to do.

        Args:
            sent_at: When that request was sent, by `clock`: what was sent before the last halving says nothing new.
            pause_s: How long the endpoint asked to be left alone; None when it did not say.
        """
        self.refusals += 1
        now = self.clock()
        if sent_at > self._halved_at:
            self._too_many = float(min(self.in_flight, self.places))
            self._places = max(1.0, self._too_many / 2)
            self._is_starting, self._halved_at = False, now
        if pause_s:
            self._paused_until = max(self._paused_until, now + min(pause_s, MOST_PAUSE_S))

    async def _admitted(self, ticket: int) -> None:
        if not self._queue and self._has_place():
            self.in_flight += 1
            return
        waiting = _Waiting(ticket, asyncio.get_running_loop().create_future())
        heappush(self._queue, waiting)
        self._admit()
        try:
            await waiting.admitted
        except asyncio.CancelledError:
            if waiting.admitted.done() and not waiting.admitted.cancelled():
                self.in_flight -= 1
            elif waiting in self._queue:
                self._queue.remove(waiting)
                self._queue.sort()
            self._admit()
            raise

    def _has_place(self) -> bool:
        return self.in_flight < self.places and self.clock() >= self._paused_until

    def _admit(self) -> None:
        """Lets the first of the queue in, and the next, as far as there are places."""
        while self._queue and self._has_place():
            waiting = heappop(self._queue)
            if not waiting.admitted.done():
                waiting.admitted.set_result(None)
                self.in_flight += 1
        left_s = self._paused_until - self.clock()
        if self._queue and left_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        self._admit()
