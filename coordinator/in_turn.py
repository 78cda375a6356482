"""Who is next of those that wait, fair between principals: each principal's own in their order, principals in turn."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


def _anyone(principal: str) -> bool:
    return True


class InTurn(Generic[_T]):
    """Those that wait, by principal."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[_T]] = OrderedDict()
        self._last = ""
        """The principal that had a turn last."""

    def join(self, one: _T, principal: str) -> None:
        """Put one at the end of its principal's."""
        self._waiting.setdefault(principal, deque()).append(one)

    def leave(self, one: _T) -> bool:
        """Take one out that waits; False if it does not."""
        for principal, waiting in self._waiting.items():
            if one in waiting:
                waiting.remove(one)
                if not waiting:
                    del self._waiting[principal]
                return True
        return False

    def waiting(self, principal: str) -> int:
        """Return how many of a principal's wait."""
        return len(self._waiting.get(principal, ()))

    def position(self, one: _T) -> int | None:
        """Return how many of the same principal's come before one that waits, itself included."""
        for waiting in self._waiting.values():
            if one in waiting:
                return waiting.index(one) + 1
        return None

    def had_turn(self, principal: str) -> None:
        """Count the turn of one that did not have to wait."""
        self._last = principal

    def next(self, may: Callable[[str], bool] = _anyone) -> tuple[str, _T] | None:
        """Take out the one whose turn it is and return it with its principal; None where there is none.

        Args:
            may: Whether a principal may have a turn now; one that may not keeps its place.
        """
        # Only now: whoever came since then must not stand behind all that this principal has.
        if self._last in self._waiting:
            self._waiting.move_to_end(self._last)
        for principal, waiting in self._waiting.items():
            if may(principal):
                one = waiting.popleft()
                if not waiting:
                    del self._waiting[principal]
                self._last = principal
                return principal, one
        return None
