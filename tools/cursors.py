"""Cursors, as the tools see them: how far a session has read what its background commands print."""

from typing import Protocol


class Cursors(Protocol):
    """One session's cursors, for one call: the same call asked again begins where it began the first time."""

    def begin(self, name: str) -> int:
        """Return the offset from which this call shows the output of that name."""

    def end(self, name: str, offset: int) -> None:
        """Note how far this call has shown it."""
