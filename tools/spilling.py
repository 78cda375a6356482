"""Spill, as the tools see it: the file that takes a call's whole output, and the words about what is in it."""

from enum import StrEnum
from typing import Protocol


class SpillFlaw(StrEnum):
    """Why a spill does not hold all that was printed."""

    CALL_BOUND = "call_bound"
    """It is as large as one call's may get; it has the beginning."""
    SESSION_BOUND = "session_bound"
    """All of the session's are as large as they may get together; it has the beginning, or nothing."""
    VOLUME = "volume"
    """The shared volume took no more; it has the beginning, or nothing."""
    LINK = "link"
    """The link to the box was down for a while; a part is missing somewhere."""


class Spill(Protocol):
    """The file that takes a call's whole output, kept by the worker and readable in the box."""

    @property
    def box_path(self) -> str:
        """Path inside the box."""

    @property
    def written_bytes(self) -> int:
        """Bytes in the file; 0 when there is none."""

    @property
    def room_bytes(self) -> int:
        """How much more it would take now."""

    @property
    def flaw(self) -> SpillFlaw | None:
        """Why something is missing in it; None while all that was written is there."""

    @property
    def problem(self) -> str:
        """What the volume said, in its words; "" unless the flaw is its."""

    def write(self, chunk: bytes) -> None:
        """Append a chunk, or as much of it as there is room for; never raises, see `flaw`."""

    def spoil(self, flaw: SpillFlaw) -> None:
        """Note that something is missing which was never written."""

    def start_over(self) -> None:
        """Forget what was written; the next chunk is the file's first."""


def whereabouts(spill: Spill) -> str:
    """Return where the whole of a text is, or why it is nowhere, to end a sentence with; "" if it was never spilled."""
    size, path = spill.written_bytes, spill.box_path
    match spill.flaw:
        case None:
            return f"all of it: {path}" if size else ""
        case SpillFlaw.LINK:
            lost = "the link to the sandbox was down for a while"
            return f"with parts missing in {path}: {lost}" if size else f"the rest was not kept: {lost}"
        case SpillFlaw.CALL_BOUND:
            why = "no more is kept of one call"
        case SpillFlaw.SESSION_BOUND:
            why = "the session's room for kept output is used up"
        case SpillFlaw.VOLUME:
            why = f"the volume for kept output took no more: {spill.problem}"
    return f"its first {size} bytes: {path} ({why})" if size else f"the rest was not kept: {why}"
