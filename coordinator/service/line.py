"""Who is next: sessions that wait for their turn, fair between principals: sessions → **line** → running."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator


class Line:
    """Waiting sessions, by principal; each principal's own in their order, the principals in turn.

    Args:
        most: How many sessions run at once, of all principals together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: OrderedDict[str, deque[str]] = OrderedDict()
        self._running: dict[str, str] = {}

    def join(self, session: str, principal: str) -> None:
        """Put a session at the end of its principal's."""
        self._waiting.setdefault(principal, deque()).append(session)

    def begin(self, session: str, principal: str) -> None:
        """Count a session that runs without having waited."""
        self._running[session] = principal

    @property
    def room(self) -> int:
        """How many more may run now."""
        return self._most - len(self._running)

    def leave(self, session: str) -> bool:
        """Take a session out that waits; False if it does not."""
        for waiting in self._waiting.values():
            if session in waiting:
                waiting.remove(session)
                return True
        return False

    def ended(self, session: str) -> None:
        """Give a running session's turn back."""
        self._running.pop(session, None)

    def running(self, principal: str) -> int:
        """Return how many of a principal's sessions have their turn."""
        return sum(1 for one in self._running.values() if one == principal)

    def waiting(self, principal: str) -> int:
        """Return how many of a principal's sessions wait."""
        return len(self._waiting.get(principal, ()))

    def position(self, session: str) -> int | None:
        """Return how many of the same principal's sessions come before a waiting one, itself included."""
        for waiting in self._waiting.values():
            if session in waiting:
                return waiting.index(session) + 1
        return None

    def next(self, may_run: Callable[[str, int], bool]) -> Iterator[str]:
        """Yield sessions whose turn it is now; each one runs from then on.

        Args:
            may_run: Whether a principal with so many running sessions may have one more.
        """
        passed = 0
        while self._waiting and passed < len(self._waiting) and len(self._running) < self._most:
            principal, waiting = next(iter(self._waiting.items()))
            # Whoever had a turn, or may not have one, goes behind all others.
            self._waiting.move_to_end(principal)
            if not waiting:
                del self._waiting[principal]
            elif may_run(principal, self.running(principal)):
                session = waiting.popleft()
                self._running[session] = principal
                passed = 0
                yield session
            else:
                passed += 1
