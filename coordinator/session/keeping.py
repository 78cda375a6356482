"""What stays of a session for a person: its private copy once it has ended, and its box once its model is done."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from coordinator.session.event_fields import SessionStatus

Keep = Literal["never", "unfinished", "always"]
"""When the copy stays below the state directory."""


class Of(StrEnum):
    """Whose box stays."""

    ALL = "all"
    """Of every session that was not cancelled."""
    UNFINISHED = "unfinished"
    """Of one that was stopped or failed."""


@dataclass(frozen=True)
class BoxStay:
    """For how long a box stays, and whose."""

    minutes: float
    of: Of = Of.ALL

    def is_for(self, status: SessionStatus) -> bool:
        """Whether the box of a session stays whose last turn ended so."""
        return status != "cancelled" and (self.of is Of.ALL or status != "completed")
