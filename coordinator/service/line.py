"""Who is next: sessions that wait for their turn, fair between principals: sessions → **line** → running."""

from collections.abc import Callable, Iterator

from coordinator.in_turn import InTurn


class Line:
    """Waiting sessions, by principal; each principal's own in their order, the principals in turn.

    Args:
        most: How many sessions run at once, of all principals together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting = InTurn[str]()
        self._running: dict[str, str] = {}

    def join(self, session: str, principal: str) -> None:
        """Put a session at the end of its principal's."""
        self._waiting.join(session, principal)

    def begin(self, session: str, principal: str) -> None:
        """Count a session that runs without having waited."""
        self._running[session] = principal

    @property
    def room(self) -> int:
        """How many more may run now."""
        return self._most - len(self._running)

    def leave(self, session: str) -> bool:
        """Take a session out that waits; False if it does not."""
        return self._waiting.leave(session)

    def ended(self, session: str) -> None:
        """Give a running session's turn back."""
        self._running.pop(session, None)

    def running(self, principal: str) -> int:
        """Return how many of a principal's sessions have their turn."""
        return sum(1 for one in self._running.values() if one == principal)

    def waiting(self, principal: str) -> int:
        """Return how many of a principal's sessions wait."""
        return self._waiting.waiting(principal)

    def position(self, session: str) -> int | None:
        """Return how many of the same principal's sessions come before a waiting one, itself included."""
        return self._waiting.position(session)

    def next(self, may_run: Callable[[str, int], bool]) -> Iterator[str]:
        """Yield sessions whose turn it is now; each one runs from then on.

        Args:
            may_run: Whether a principal with so many running sessions may have one more.
        """
        while self.room > 0:
            found = self._waiting.next(lambda principal: may_run(principal, self.running(principal)))
            if found is None:
                return
            principal, session = found
            self._running[session] = principal
            yield session
