"""What a session has seen of its files: the side of it that the tools use. The worker keeps it.

Read tells what it showed; Edit and Write ask, before they replace anything, which version they may replace.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from sandbox.box import Box
from sandbox.requests import CallMark, ReadAnswer, StatAnswer, Version


@dataclass(frozen=True)
class Change:
    """What a call may do to a file."""

    path: str
    """Canonical, as the guest gave it."""
    expected: Version | None = None
    """The one version that may be replaced; None compares nothing."""
    must_be_new: bool = False
    """No file may be there."""
    done: Callable[[str, Version], None] = lambda path, version: None
    """Told the path and the new version once the file is replaced."""


class SeenFiles(Protocol):
    """One session's read metadata, for one call."""

    def shown(self, answer: ReadAnswer, last_line: int) -> None:
        """Note that the call showed the answer's lines up to `last_line`."""

    def changing(self, found: StatAnswer, *, whole: bool, join: bool) -> AbstractContextManager[Change]:
        """Hold the path against every other session while the block runs.

        Args:
            found: What lies at the path.
            whole: All of the file is replaced, so all of it must have been shown.
            join: The change was started earlier and is only fetched: nothing is checked.

        Raises:
            ToolFailure: the session may not change it; says what to do first.
        """


@contextmanager
def changing(seen: SeenFiles | None, box: Box, mark: CallMark, path: str, *, whole: bool) -> Iterator[Change]:
    """Yield what may be done to the file at a path; without metadata, anything.

    Raises:
        ToolFailure: the session may not change it; says what to do first.
        GuestRefused: the path leads nowhere.
        BoxLost: the box ended.
    """
    if seen is None:
        yield Change(path)
        return
    found = box.stat(mark.session, path)
    with seen.changing(found, whole=whole, join=mark.join) as change:
        yield change
