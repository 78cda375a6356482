"""What events are made of: their common settings, and the models and words that stand in several of them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

CallStatus = Literal["success", "partial", "error"]
SessionStatus = Literal["completed", "stopped", "failed", "cancelled"]


class EventFields(BaseModel):
    """Shared settings of all events; their validators are built at first use, to start fast."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class CutInfo(BaseModel):
    """How much of an answer the model does not see."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    total_bytes: int
    """Size of the whole result."""
    shown_bytes: int
    """How much of it the answer carries."""
    path: str | None = None
    """Where the model can read the rest, as seen from its box; None when it was not kept."""


class TodoItem(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    content: str
    """What is to be done."""
    status: Literal["pending", "in_progress", "completed"]
    """At most one is in progress."""


class ShortenedAnswer(BaseModel):
    """What stands in the place of an answer that was too long to stay."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    position: int
    """The `tool` message's place in the list before the compaction, from 0."""
    content: str
    """Its content from now on."""
