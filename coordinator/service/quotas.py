"""How many sessions a principal may have: admission → **quotas** → line."""

from collections import deque
from collections.abc import Callable

from coordinator.service.line import Line
from coordinator.service.principals import Principal
from coordinator.service.refusals import Code, Refused

HOUR_S = 3600.0


class Quotas:
    """Counts what this process makes and runs.

    Args:
        line: Who runs and who waits.
        clock: Monotonic seconds.
    """

    def __init__(self, line: Line, clock: Callable[[], float]) -> None:
        self._line = line
        self._clock = clock
        self._created: dict[str, deque[float]] = {}

    def demand_room(self, principal: Principal, *, is_new: bool = True) -> None:
        """Return if a principal may have one more session, a new one or one that goes on.

        Raises:
            Refused: its quota is used up.
        """
        quota, name = principal.allowance.quota, principal.name
        times, now = self._created.setdefault(name, deque()), self._clock()
        while times and times[0] <= now - HOUR_S:
            times.popleft()
        if is_new and quota.created_per_hour is not None and len(times) >= quota.created_per_hour:
            words = f"{name} has created {len(times)} sessions within an hour, as many as it may."
            raise Refused(Code.TOO_MANY, words, "Wait.", retry_after_s=times[0] + HOUR_S - now)
        waits = quota.running is not None and self._line.running(name) >= quota.running
        if waits and quota.queued is not None and self._line.waiting(name) >= quota.queued:
            words = f"{name} has {self._line.running(name)} sessions running and {self._line.waiting(name)} waiting."
            raise Refused(Code.TOO_MANY, words, "Wait for one to end, or cancel one.", retry_after_s=10)

    def count(self, principal: Principal) -> None:
        """Count a new session."""
        self._created.setdefault(principal.name, deque()).append(self._clock())
