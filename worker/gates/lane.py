"""Gate before the last: knows which lanes are held for longer than their call can take.

A thread cannot be ended. A lane whose call hangs in a library or the kernel is lost to the node; when too many are, the
node starts itself anew, and its boxes are adopted.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable

from tools.base import ToolResult
from worker.gates.gate import GateCall, Handler

log = logging.getLogger(__name__)

GRACE_S = 30.0
START_S = 180.0
"""A call may have to wait for a fresh box; the image was there for the one before."""


class LaneGate:
    """Counts lost lanes. Thread-safe."""

    def __init__(self, lanes: int, on_wedged: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`on_wedged` is called once, by `look`, when a quarter of the node's lanes is lost."""
        self._allowed = max(1, lanes // 4)
        self._on_wedged = on_wedged
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._held: dict[int, tuple[float, str]] = {}
        self._is_wedged = False

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return what follows."""
        limit_s = call.tool.timeout_s(call.arguments) + START_S + GRACE_S
        number = next(self._numbers)
        with self._lock:
            self._held[number] = (self._clock() + limit_s, str(call.order.key))
        try:
            return following(call)
        finally:
            with self._lock:
                del self._held[number]

    @property
    def running(self) -> int:
        """How many calls are under way that may still end."""
        with self._lock:
            return sum(overdue_at > self._clock() for overdue_at, _ in self._held.values())

    def lost(self) -> list[str]:
        """Return the keys of the calls whose lanes are lost."""
        with self._lock:
            return [key for overdue_at, key in self._held.values() if overdue_at <= self._clock()]

    def look(self) -> None:
        """Say so when too many lanes are lost."""
        lost = self.lost()
        if lost:
            log.error("lanes are lost", extra={"calls": lost, "allowed": self._allowed})
        if len(lost) >= self._allowed and not self._is_wedged:
            self._is_wedged = True
            self._on_wedged()
