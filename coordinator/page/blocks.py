"""What a session's page is made of: **blocks** → story → templates."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

MAX_NOTES = 50
"""So many of one block are shown, the newest."""

CallState = Literal["running", "asks", "success", "partial", "error"]


@dataclass
class Child:
    """A sub-agent."""

    name: str
    """The directory of its transcript."""
    description: str
    profile: str
    began_s: float
    ended_s: float | None = None
    status: str = "running"
    stop_reason: str = ""
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    blocks: list["Block"] = field(default_factory=list)
    """Its newest steps, where they have been looked up."""


@dataclass
class Call:
    """One call of a reply."""

    index: int
    tool: str
    summary: str = ""
    arguments: str = ""
    began_s: float | None = None
    """Seconds since 1970; None while it waits for those before it."""
    ended_s: float | None = None
    state: CallState = "running"
    error_code: str = ""
    time_ms: float = 0.0
    answer: str = ""
    is_long: bool = False
    """The answer is longer than what is shown here."""
    total_bytes: int | None = None
    """Size of the whole result, where the model did not see all of it."""
    spill: str = ""
    """Name of the file that holds the whole result; "" for none."""
    remarks: list[str] = field(default_factory=list)
    """How it was decided, and what was special about its answer."""
    children: list[Child] = field(default_factory=list)


@dataclass
class Note:
    """Something beside the calls."""

    level: str
    text: str


@dataclass
class Block:
    """What a person said, or one step: a request to the model, its reply, the reply's calls."""

    key: int
    """Its place in the session, from 0."""
    began_s: float
    step: int | None = None
    """None for what a person said."""
    said: str = ""
    """The person's words."""
    by: str = "user"
    replied_s: float | None = None
    text: str = ""
    refusal: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    calls: dict[int, Call] = field(default_factory=dict)
    calls_left_out: int = 0
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=MAX_NOTES))

    @property
    def ended_s(self) -> float:
        """When the last thing happened that is known."""
        times = [self.began_s, self.replied_s or 0.0]
        for call in self.calls.values():
            times += [call.began_s or 0.0, call.ended_s or 0.0]
        return max(times)

    @property
    def is_open(self) -> bool:
        """Whether something of it still goes on."""
        waits = self.step is not None and self.replied_s is None
        return waits or any(call.ended_s is None for call in self.calls.values())
