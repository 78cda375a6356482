"""A session's state from its transcript: reading → **rebuild** → resume, export.

The conversation is built from what entered it (prompt, `UserMessage`, `ReplyTaken`, answers), never from what a loop
would have done with the replies. So the list is the one that the endpoint had, and valid wherever the transcript ends.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordinator.endpoint.reply import ModelReply, RawCall, Usage
from coordinator.session.call_events import AnswerShortened, ApprovalAnswered, ApprovalAsked, CallFinished, CallStarted
from coordinator.session.events import Event
from coordinator.session.history import History
from coordinator.session.limits import Limits
from coordinator.session.session_events import (
    TAKEOVER,
    ChildEnded,
    ChildStarted,
    LimitsChanged,
    SessionEnded,
    SessionEnding,
    SessionForked,
    SessionPlaced,
    SessionResumed,
    SessionStarted,
    SystemWritten,
    TurnEnded,
)
from coordinator.session.step_events import (
    ContextCompacted,
    ModelReplied,
    ReplyTaken,
    StepStarted,
    TokensSpent,
    ToolsShown,
    UserMessage,
)
from coordinator.session.transcript import Entry

LOST_ANSWER = '{"status":"error","error_code":"OUTCOME_UNKNOWN","text":"The answer of this call was lost; it ran."}'
"""For an answer whose line in the transcript cannot be read."""


@dataclass
class OpenStep:
    """A step some of whose calls have no answer yet."""

    step: int
    generation: int
    """Under which its calls were sent."""
    calls: tuple[RawCall, ...]
    ids: tuple[str, ...]
    answers: dict[int, str] = field(default_factory=dict)
    """By the call's place in the reply."""
    begun: set[int] = field(default_factory=set)
    """Calls that may have been sent."""
    begun_at: dict[int, float] = field(default_factory=dict)
    """When each of them was, Unix seconds by its owner's clock; missing where that cannot be read."""
    sent_to: dict[int, SessionPlaced] = field(default_factory=dict)
    """Where the box stood when each of them was: a later owner that died too may have had another place."""
    asked: set[int] = field(default_factory=set)
    """Calls about which a human is asked."""

    @property
    def missing(self) -> list[int]:
        """Places of the calls without an answer."""
        return [at for at in range(len(self.calls)) if at not in self.answers]

    def in_order(self) -> list[str]:
        """All answers; each must be there."""
        return [self.answers[at] for at in range(len(self.calls))]


@dataclass
class Rebuilt:
    """How far a session is."""

    history: History = field(default_factory=History)
    """While `open_step` is there, its last message is a reply whose calls are unanswered."""
    started: SessionStarted | None = None
    """None where that line is lost."""
    open_step: OpenStep | None = None
    steps: int = 0
    """Model replies."""
    calls: int = 0
    """Calls answered."""
    usages: list[Usage] = field(default_factory=list)
    """Of each request to the session's own model."""
    children: list[ChildEnded] = field(default_factory=list)
    open_children: dict[str, str] = field(default_factory=dict)
    """Sub-agents that did not end: the transcript's path, below the session's directory, by id."""
    placed: SessionPlaced | None = None
    """Where its box stood last."""
    limits: Limits | None = None
    """As they were changed last; None where they were not."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """What the model was shown last."""
    lasting: list[RawCall] = field(default_factory=list)
    """Calls for which a human's yes was one for the whole session."""
    ending: SessionEnding | None = None
    """How it was to end, where its owners only did not come to say that it has; nobody else went on with it since."""
    ended: SessionEnded | None = None
    """How its last owner ended it; None where it did not come to that."""
    turn: TurnEnded | None = None
    """The last turn's end, where nothing followed it."""
    is_new_fork: bool = False
    """It is a fork, and nothing happened in it yet."""
    elapsed_s: float = 0.0
    """Time that its owners spent on it, from their segments' first to last events."""

    @property
    def text(self) -> str:
        """The model's last words, where the conversation ends with them."""
        return str(self.history.messages[-1]["content"] or "") if self.history.is_answered else ""


def rebuild(entries: Sequence[Entry], *, is_compacted: bool = True) -> Rebuilt:
    """Return how far the session is whose lines these are; what cannot be read is left out.

    Args:
        entries: The lines.
        is_compacted: The conversation as the model has it; False leaves every message in it as it was.
    """
    builder = _Builder(is_compacted)
    for entry in entries:
        if entry.event is not None:
            builder.take(entry.event, entry.at)
    builder.close_answered()
    builder.state.elapsed_s = _elapsed_s(entries)
    return builder.state


_Talk = ModelReplied | ReplyTaken | UserMessage | StepStarted | ContextCompacted | SystemWritten


class _Builder:
    def __init__(self, is_compacted: bool) -> None:
        self.state = Rebuilt()
        self._is_compacted = is_compacted
        self._generation = 1
        self._begun_step = 0
        self._at = ""
        self._reply: ModelReplied | None = None
        self._raw: dict[tuple[int, int], RawCall] = {}

    def take(self, event: Event, at: str) -> None:
        self._at = at
        match event:
            case ModelReplied() | ReplyTaken() | UserMessage() | StepStarted() | ContextCompacted() | SystemWritten():
                self._conversation(event)
            case ChildStarted():
                self.state.open_children[event.child] = event.transcript
            case ChildEnded():
                self.state.children.append(event)
                self.state.open_children.pop(event.child, None)
            case CallStarted() | CallFinished() | AnswerShortened() | ApprovalAsked() | ApprovalAnswered():
                self._call(event)
            case _:
                self._session(event)

    def close_answered(self) -> None:
        """Put the answers of a step into the conversation once all of them are there."""
        opened = self.state.open_step
        if opened is not None and not opened.missing:
            self.state.history.add_answers(opened.in_order())
            self.state.open_step = None

    def _session(self, event: Event) -> None:
        state = self.state
        match event:
            case SessionStarted():
                state.started, self._generation = event, event.generation
                state.history = History(event.system)
                state.history.add_user(event.prompt, "user")
            case SessionResumed():
                self._generation, state.ended, state.is_new_fork = event.generation, None, False
                state.ending = state.ending if event.by == TAKEOVER else None
            case SessionForked():
                self._fork()
            case SessionPlaced():
                state.placed = event
            case ToolsShown():
                state.tools = event.tools
            case TokensSpent():
                state.usages.append(event.usage)
            case LimitsChanged():
                state.limits = event.limits
            case TurnEnded() | SessionEnding() | SessionEnded():
                self._end(event)

    def _end(self, event: TurnEnded | SessionEnding | SessionEnded) -> None:
        match event:
            case TurnEnded():
                self.state.turn = event
            case SessionEnding():
                self.state.ending = event
            case SessionEnded():
                self.state.ended = event

    def _fork(self) -> None:
        """Keep the conversation, and count anew what the session uses: what was used before is not the fork's."""
        state = self.state
        state.is_new_fork, state.calls, state.limits, state.turn, state.ending = True, 0, None, None, None
        state.usages.clear()
        state.children.clear()
        # A yes for the whole session was one for that session.
        state.lasting.clear()

    def _conversation(self, event: _Talk) -> None:
        state = self.state
        state.turn = None
        match event:
            case StepStarted():
                self._close()
                self._begun_step = event.step
            case ContextCompacted():
                self._close()
                if self._is_compacted:
                    state.history.compact(event)
            case SystemWritten():
                state.history.set_system(event.system)
            case UserMessage():
                self._close()
                state.history.add_user(event.text, event.by)
            case ModelReplied():
                self._reply = event
                state.steps = max(state.steps, event.step)
                state.usages.append(event.usage or Usage())
                self._raw.update({(event.step, call.index): call for call in event.calls})
            case ReplyTaken() if self._reply is not None:
                self._close()
                self._taken(self._reply, event)
                self._reply = None

    def _taken(self, said: ModelReplied, taken: ReplyTaken) -> None:
        calls = said.calls if taken.has_calls else ()
        if len(calls) != len(taken.call_ids):
            return
        text = said.text if taken.text is None else taken.text
        reply = ModelReply(text, calls, said.finish_reason, said.usage, said.refusal, said.raw)
        self.state.history.add_reply(reply, taken.call_ids)
        if calls:
            self.state.open_step = OpenStep(said.step, self._generation, calls, taken.call_ids)

    def _close(self) -> None:
        """End the open step before something follows it; an answer that cannot be read is said to be lost."""
        opened = self.state.open_step
        if opened is not None:
            for at in opened.missing:
                opened.answers[at] = LOST_ANSWER
            self.close_answered()

    def _call(self, event: CallStarted | CallFinished | AnswerShortened | ApprovalAsked | ApprovalAnswered) -> None:
        if isinstance(event, ApprovalAnswered) and event.decision == "allow" and event.is_lasting:
            raw = self._raw.get((event.step, event.index))
            if raw is not None:
                self.state.lasting.append(raw)
        self.state.calls += isinstance(event, CallFinished)
        opened = self.state.open_step
        if opened is None or event.step != opened.step or not 0 <= event.index < len(opened.calls):
            return
        match event:
            case CallStarted():
                opened.begun.add(event.index)
                with suppress(ValueError):
                    opened.begun_at.setdefault(event.index, datetime.fromisoformat(self._at).timestamp())
                if self.state.placed is not None:
                    opened.sent_to.setdefault(event.index, _as_sent(self.state.placed, event))
            case CallFinished() | AnswerShortened():
                opened.answers[event.index] = event.answer
                opened.asked.discard(event.index)
            case ApprovalAsked():
                opened.asked.add(event.index)
            case ApprovalAnswered():
                opened.asked.discard(event.index)


def _as_sent(placed: SessionPlaced, call: CallStarted) -> SessionPlaced:
    """Return where a call was sent, with the life of Redis that it was sent in: many calls are of a later one."""
    return placed.model_copy(update={"run_id": call.run_id}) if call.run_id else placed


def _elapsed_s(entries: Sequence[Entry]) -> float:
    total_s, first, last = 0.0, None, None
    for entry in entries:
        if isinstance(entry.event, SessionForked):
            total_s, first, last = 0.0, None, None
            continue
        try:
            at = datetime.fromisoformat(entry.at)
        except ValueError:
            continue
        if isinstance(entry.event, SessionResumed) and first is not None and last is not None:
            total_s += max(0.0, (last - first).total_seconds())
            first = None
        first, last = first or at, at
    if first is not None and last is not None:
        total_s += max(0.0, (last - first).total_seconds())
    return total_s
