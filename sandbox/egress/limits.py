"""How much one box may carry."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.wire import STREAMS_MAX

MIB = 1024 * 1024


@dataclass(frozen=True)
class EgressLimits:
    """Bounds for one box; times in seconds."""

    streams: int = STREAMS_MAX
    """Open at once; a client beyond waits in the box or is refused."""
    bytes_per_s: int = 32 * MIB
    """Both directions together: the link is shared with the calls."""
    burst_bytes: int = MIB
    """How much may go at once after a pause."""
    total_bytes: int = 16 * 1024 * MIB
    """Both directions together, in the life of the box as this process knows it."""
    head_s: float = 10.0
    """For a client to send its request's head."""
    dial_s: float = 15.0
    """To resolve and connect."""
    idle_s: float = 300.0
    """Without a byte in either direction a connection is closed."""
    linger_s: float = 5.0
    """For a client to close its end after it had its answer."""


class Budget:
    """What is left of rate and total. Used by one thread at a time."""

    def __init__(self, limits: EgressLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._level = float(limits.burst_bytes)
        self._filled = clock()
        self.left_bytes = limits.total_bytes

    @property
    def wait_s(self) -> float:
        """How long until anything may go again; 0 for now."""
        self._fill()
        return 0.0 if self._level > 0 else -self._level / self._limits.bytes_per_s + 0.001

    def spend(self, size_bytes: int) -> None:
        """Count what went; the level may go below nothing, which has to be waited for."""
        self._fill()
        self._level -= size_bytes
        self.left_bytes -= size_bytes

    def _fill(self) -> None:
        now = self._clock()
        level = self._level + (now - self._filled) * self._limits.bytes_per_s
        self._level = min(level, float(self._limits.burst_bytes))
        self._filled = now
