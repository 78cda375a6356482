"""What is known of a session right now, whether it runs here or is read: events → **facts** → API."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from coordinator.endpoint.reply import Usage
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished
from coordinator.session.events import ChildEvent, Event, innermost
from coordinator.session.limits import Limits
from coordinator.session.session_events import (
    ChildEnded,
    LimitsChanged,
    Notice,
    SessionEnded,
    SessionForked,
    SessionResumed,
    SessionStarted,
    TurnEnded,
)
from coordinator.session.step_events import ModelReplied, StepStarted
from worker.contract.approvals import is_within

Status = Literal["queued", "running", "waiting", "idle", "completed", "stopped", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset({"completed", "stopped", "failed", "cancelled"})


@dataclass
class Facts:
    """One session as its events tell it."""

    state: Status = "queued"
    started_at: str | None = None
    """When its first event was kept, ISO 8601 in UTC."""
    ended_at: str | None = None
    model: str = ""
    image: str = ""
    policy: str = ""
    workspace_mode: str = ""
    limits: Limits | None = None
    step: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    text: str = ""
    """The last answer; of a running session, what the model said last."""
    stop_reason: str = ""
    last_error: str | None = None
    patch_path: str | None = None
    forked_from: str | None = None
    is_between_turns: bool = False
    """The model has answered, and nothing was said since."""
    waiting: set[tuple[str, int, int]] = field(default_factory=set)
    """Calls about which a human is asked: the sub-agent's id ("" for the session itself), step and index."""

    @property
    def status(self) -> Status:
        """What it does, or how it ended."""
        return "waiting" if self.state == "running" and self.waiting else self.state

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens unless somebody asks for it."""
        return self.state in ENDED

    def fail(self, reason: str) -> None:
        """It ended without an event that says so: its transcript could not be begun."""
        self.state, self.stop_reason, self.last_error = "failed", reason, reason

    def add(self, event: Event, at: datetime | str) -> None:
        """Take one more event in; they come in their order."""
        moment = at if isinstance(at, str) else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        match event:
            case SessionStarted():
                self.state, self.ended_at = "running", None
                self.started_at = self.started_at or moment
                self.model, self.image, self.policy = event.model, event.image, event.policy
                self.workspace_mode, self.limits = event.workspace_mode, event.limits
                self.forked_from = event.forked_from or None
            case SessionForked():
                self._fork()
            case SessionResumed():
                self.state, self.ended_at, self.stop_reason = "running", None, ""
                self.started_at = self.started_at or moment
                self.is_between_turns = False
                # What sub-agents asked ended with them.
                self.waiting = {one for one in self.waiting if not one[0]}
            case LimitsChanged():
                self.limits = event.limits
            case StepStarted():
                self.state, self.step, self.is_between_turns = "running", event.step, False
            case TurnEnded():
                self.text, self.is_between_turns = event.text or self.text, True
            case ModelReplied():
                self.usage = self.usage.plus(event.usage)
                self.text = event.text or self.text
            case SessionEnded():
                self._end(event, moment)
            case _:
                self._add_within(event)

    def _add_within(self, event: Event) -> None:
        """Take in what happens within a step."""
        match event:
            case CallFinished():
                self.calls += 1
                if event.status == "error":
                    self.last_error = f"{event.tool}: {event.error_code}"
            case ChildEvent() | ApprovalAsked() | ApprovalAnswered():
                self._ask(event)
            case ChildEnded():
                self.waiting = {one for one in self.waiting if not is_within(one[0], event.child)}
            case Notice(level="warning" | "error"):
                self.last_error = event.text

    def _ask(self, event: ChildEvent | ApprovalAsked | ApprovalAnswered) -> None:
        """Take in that a human is asked, or has answered; what else a sub-agent does is its own."""
        child, did = innermost(event)
        match did:
            case ApprovalAsked(within_s=float()):
                self.waiting.add((child, did.step, did.index))
            case ApprovalAnswered():
                self.waiting.discard((child, did.step, did.index))

    def _fork(self) -> None:
        """Begin anew: what came before was another session's."""
        self.state, self.started_at, self.text, self.last_error = "queued", None, "", None
        self.calls, self.usage = 0, Usage()
        self.is_between_turns = False
        self.waiting.clear()

    def _end(self, event: SessionEnded, moment: str) -> None:
        self.state, self.ended_at = event.status, moment
        self.step, self.calls, self.usage = event.steps, event.calls, event.usage
        self.cost_usd, self.text, self.stop_reason = event.cost_usd, event.text, event.stop_reason
        self.patch_path = event.patch_path
        self.waiting.clear()
        if event.status == "failed":
            self.last_error = event.stop_reason
