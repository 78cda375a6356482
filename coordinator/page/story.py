"""A session as a reader sees it, block by block: journal → **story** → templates.

Long texts are cut here: what is shown of a call is its beginning, and a link leads to the rest.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from coordinator.page import wording
from coordinator.page.blocks import Block, Call, Child, Note
from coordinator.service.journal import Line
from coordinator.session.call_events import (
    AnswerShortened,
    ApprovalAnswered,
    ApprovalAsked,
    CallFinished,
    CallStarted,
    TodosWritten,
)
from coordinator.session.events import Event, parse_event
from coordinator.session.session_events import ChildEnded, ChildStarted, SessionEnded, SessionResumed, SessionStarted
from coordinator.session.step_events import ModelReplied, StepStarted, UserMessage


@dataclass(frozen=True)
class Bounds:
    """How much of a session is held, and shown on one page."""

    blocks: int
    """The newest ones; earlier ones have pages of their own."""
    calls: int
    """Of one reply."""
    text_chars: int
    answer_chars: int
    """Of a call's answer, and of its arguments."""


WHOLE = Bounds(blocks=150, calls=200, text_chars=20_000, answer_chars=6_000)
NESTED = Bounds(blocks=20, calls=50, text_chars=600, answer_chars=0)
"""Of a sub-agent on the page of its session; it has a page of its own."""


@dataclass
class Story:
    """Takes a session's events in, in their order.

    Args:
        before: Where a page of earlier steps ends: the first step that is not shown. None shows the newest.
        bounds: How much is held.
    """

    before: int | None = None
    bounds: Bounds = WHOLE
    blocks: deque[Block] = field(init=False)
    todos: list[tuple[str, str]] = field(default_factory=list)
    """Things to do, each with pending, in_progress or completed."""
    has_ended: bool = False
    is_cut: bool = False
    """There are later steps."""
    _changed: set[int] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        self.blocks = deque(maxlen=self.bounds.blocks)

    def take(self, lines: Iterable[Line]) -> None:
        """Take in more of the journal; what a later release writes is passed over."""
        for line in lines:
            fields = {name: value for name, value in line.fields.items() if name not in ("v", "seq", "at")}
            try:
                event = parse_event(fields)
                at_s = datetime.fromisoformat(str(line.fields.get("at", ""))).timestamp()
            except (ValidationError, ValueError):
                continue
            self._take(event, at_s)

    def changed(self) -> list[Block]:
        """Return the blocks that are new or other since the last time."""
        keys, self._changed = self._changed, set()
        return [block for block in self.blocks if block.key in keys]

    @property
    def first_step(self) -> int | None:
        """The first step on the page, where there are earlier ones; else None."""
        if self._count <= len(self.blocks):
            return None
        return next((block.step for block in self.blocks if block.step is not None), None)

    def _take(self, event: Event, at_s: float) -> None:
        if isinstance(event, StepStarted) and self.before is not None and event.step >= self.before:
            self.is_cut = True
        if self.is_cut:
            return
        match event:
            case SessionStarted():
                self._begin(Block(self._count, at_s, said=event.prompt[: self.bounds.text_chars]))
            case UserMessage():
                self._begin(Block(self._count, at_s, said=event.text[: self.bounds.text_chars], by=event.by))
            case StepStarted():
                self._begin(Block(self._count, at_s, step=event.step))
            case ModelReplied():
                self._reply(event, at_s)
            case TodosWritten():
                self.todos = [(todo.content, todo.status) for todo in event.todos]
            case _:
                self._take_within(event, at_s)

    def _take_within(self, event: Event, at_s: float) -> None:
        match event:
            case CallStarted() | CallFinished() | AnswerShortened() | ApprovalAsked() | ApprovalAnswered():
                self._call(event, at_s)
            case ChildStarted() | ChildEnded():
                self._child(event, at_s)
            case _:
                self.has_ended = isinstance(event, SessionEnded) or (
                    self.has_ended and not isinstance(event, SessionResumed)
                )
                if (said := wording.note(event)) is not None:
                    self._note(Note(*said), at_s)

    def _begin(self, block: Block) -> None:
        self.blocks.append(block)
        self._count += 1
        self._changed.add(block.key)

    def _block(self, step: int) -> Block | None:
        found = next((block for block in reversed(self.blocks) if block.step == step), None)
        if found is not None:
            self._changed.add(found.key)
        return found

    def _note(self, note: Note, at_s: float) -> None:
        if not self.blocks:
            self._begin(Block(self._count, at_s))
        self.blocks[-1].notes.append(note)
        self._changed.add(self.blocks[-1].key)

    def _reply(self, event: ModelReplied, at_s: float) -> None:
        block = self._block(event.step)
        if block is None:
            return
        block.replied_s, block.text = at_s, event.text[: self.bounds.text_chars]
        block.refusal = (event.refusal or "")[: self.bounds.text_chars]
        if event.usage is not None:
            block.tokens_in += event.usage.prompt_tokens
            block.tokens_out += event.usage.completion_tokens
        for call in event.calls[: self.bounds.calls]:
            given = wording.arguments(call.arguments)
            block.calls[call.index] = Call(call.index, call.name, arguments=given[: self.bounds.answer_chars])
        block.calls_left_out = max(0, len(event.calls) - self.bounds.calls)

    def _call(
        self, event: CallStarted | CallFinished | AnswerShortened | ApprovalAsked | ApprovalAnswered, at_s: float
    ) -> None:
        block = self._block(event.step)
        if block is None or event.index >= self.bounds.calls:
            return
        call = block.calls.setdefault(event.index, Call(event.index, getattr(event, "tool", "")))
        match event:
            case CallStarted():
                call.began_s, call.summary, call.state = at_s, event.summary, "running"
            case CallFinished():
                _finish(call, event, at_s)
                self._answer(call, event.answer)
            case AnswerShortened():
                self._answer(call, event.answer)
            case ApprovalAsked():
                call.state = "asks"
                call.remarks.append(f"asked: {event.reason}")
            case ApprovalAnswered():
                call.state = "running"
                lasting = " for the whole session" if event.is_lasting else ""
                call.remarks.append(f"{event.decision}{lasting} ({event.note}) {event.message}".rstrip())

    def _answer(self, call: Call, answer: str) -> None:
        if self.bounds.answer_chars == 0:
            return
        shown = wording.answer(answer)
        call.answer, call.is_long = shown[: self.bounds.answer_chars], len(shown) > self.bounds.answer_chars

    def _child(self, event: ChildStarted | ChildEnded, at_s: float) -> None:
        block = self._block(event.step)
        call = None if block is None else block.calls.get(event.index)
        if call is None:
            return
        parts = event.transcript.split("/")
        name = parts[1] if len(parts) > 1 else ""
        child = next((one for one in call.children if one.name == name), None)
        if child is None:
            child = Child(name, event.description, getattr(event, "profile", ""), at_s)
            call.children.append(child)
        if isinstance(event, ChildEnded):
            child.ended_s, child.status, child.stop_reason = at_s, event.status, event.stop_reason
            child.steps, child.calls, child.tokens = event.steps, event.calls, event.usage.total_tokens


def _finish(call: Call, event: CallFinished, at_s: float) -> None:
    call.summary = event.summary or call.summary
    call.state, call.error_code, call.time_ms = event.status, event.error_code or "", event.time_ms
    # Answers are kept in the calls' order; the time says when this one came.
    came_s = (call.began_s or at_s) + event.time_ms / 1000
    call.began_s, call.ended_s = call.began_s or at_s, min(at_s, came_s) if event.time_ms else at_s
    if event.cut is not None:
        call.total_bytes = event.cut.total_bytes
        call.spill = (event.cut.path or "").removeprefix("/spill/")
    if event.attempt > 1:
        call.remarks.append(f"sent {event.attempt} times")
    if event.outcome_note:
        call.remarks.append(event.outcome_note)
