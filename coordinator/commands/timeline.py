"""Show a session while it runs: events → wording → **timeline** (the terminal, or any text stream).

What is finished is printed once and scrolls away; only what runs is redrawn. Without a terminal the same lines
are printed plainly, one by one, and nothing is redrawn.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO, assert_never

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from coordinator.commands import wording
from coordinator.commands.wording import Line
from coordinator.session.call_events import (
    AnswerShortened,
    ApprovalAnswered,
    ApprovalAsked,
    CallFinished,
    CallStarted,
    TodosWritten,
)
from coordinator.session.events import CallEvent, ChildEvent, Event, SessionEvent, StepEvent
from coordinator.session.session_events import (
    BoxReplaced,
    ChildEnded,
    ChildStarted,
    LimitsChanged,
    Notice,
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
    CallsWritten,
    ContextCompacted,
    ModelReplied,
    ReplyTaken,
    RequestFailed,
    StepStarted,
    TextDelta,
    TokensSpent,
    ToolsShown,
    UserMessage,
)
from coordinator.visible import visible, visible_line

PLAIN_WIDTH = 160
"""Columns of a call's line where there is no terminal."""

SHOWN_TEXT_LINES = 6
"""As many of the last lines of a text that is still coming are shown."""

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}


class Timeline:
    """Takes events and shows them; not to be called from several threads at once.

    Args:
        stream: Where it is shown, as a rule stderr.
        is_live: Whether to redraw; None: if `stream` is a terminal that can.
        clock: Monotonic seconds.
    """

    def __init__(
        self, stream: TextIO, *, is_live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._started_s: float | None = None
        self._told = ""
        """The answer that was shown last."""
        self._speaker = ""
        """The sub-agent whose lines were shown last."""
        if is_live is None:
            is_live = stream.isatty() and not Console(file=stream).is_dumb_terminal
        self._show: _Live | _Plain = _Live(stream, clock) if is_live else _Plain(stream)

    def __call__(self, event: Event) -> None:
        """Shows one event."""
        if isinstance(event, SessionEvent):
            self._of_session(event)
        elif isinstance(event, StepEvent):
            self._of_step(event)
        elif isinstance(event, CallEvent):
            self._of_call(event)
        else:
            self._child(event)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal alone inside, so that someone can be asked; goes on afterwards."""
        self._show.stop()
        try:
            yield
        finally:
            self._show.resume()

    def close(self) -> None:
        """Gives the terminal back; may be called again."""
        self._show.stop()

    def _of_session(self, event: SessionEvent) -> None:  # noqa: C901 - one branch for each kind of event
        width = self._show.width
        match event:
            case SessionStarted():
                self._started_s = self._clock()
                self._show.lines(wording.started(event, width))
            case SessionResumed():
                self._started_s = self._clock()
                self._show.lines(wording.resumed(event))
            case SessionForked():
                self._show.lines(wording.forked(event))
            case SessionPlaced() | SystemWritten() | SessionEnding():
                pass  # for readers of the transcript
            case LimitsChanged():
                self._show.lines([wording.limits_changed(event)])
            case TurnEnded():
                self._show.end()
                self._show.lines(wording.turn_ended(event, width))
                self._told = event.text
                self._show.stop()
            case BoxReplaced():
                self._show.lines([Line(f"  ! the box was replaced: {visible(event.reason)}", "yellow")])
            case ChildStarted():
                self._show.lines(wording.child_started(event, width))
            case ChildEnded():
                self._speaker = ""
                self._show.lines(wording.child_ended(event, width))
            case Notice():
                # A warning while text comes means that this text is void: its reply is asked for again.
                if event.level != "info":
                    self._show.drop_text()
                self._show.lines([Line(visible(event.text), _NOTICE_STYLES[event.level])])
            case SessionEnded():
                self._ended(event)
            case _:
                assert_never(event)

    def _of_step(self, event: StepEvent) -> None:
        match event:
            case StepStarted():
                self._show.step(event.step)
            case TextDelta():
                self._show.delta(event.text)
            case ModelReplied():
                self._replied(event)
            case RequestFailed():
                # What was shown of this reply is void: it is asked for again.
                self._show.drop_text()
                self._show.lines(wording.request_failed(event))
            case CallsWritten():
                self._show.lines([wording.calls_written(event)])
            case UserMessage():
                self._show.lines(wording.user_message(event))
            case ContextCompacted():
                self._show.lines([wording.context_compacted(event)])
            case ReplyTaken() | ToolsShown() | TokensSpent():
                pass  # for readers of the transcript
            case _:
                assert_never(event)

    def _of_call(self, event: CallEvent) -> None:
        width = self._show.width
        match event:
            case CallStarted():
                self._show.running(event)
            case CallFinished():
                self._show.finished(event, wording.call_finished(event, width))
            case AnswerShortened():
                pass  # what was cut of a call is on its line; the step's own cut is the transcript's matter
            case ApprovalAsked():
                self._show.lines(wording.approval_asked(event, width))
            case ApprovalAnswered():
                self._show.lines(wording.approval_answered(event, width))
            case TodosWritten():
                self._show.lines(wording.todos_written(event, width))
            case _:
                assert_never(event)

    def _replied(self, event: ModelReplied) -> None:
        self._show.replied()
        # A final answer is shown once, by the end of the session.
        if event.calls and event.text.strip():
            self._show.lines([Line(visible(event.text).rstrip("\n"))])

    def _child(self, event: ChildEvent) -> None:
        lines = wording.child_did(event.event, self._show.width)
        if not lines:
            return
        if self._speaker != event.child:
            self._speaker = event.child
            lines.insert(0, wording.speaker(event, self._show.width))
        self._show.lines(lines)

    def _ended(self, event: SessionEnded) -> None:
        elapsed_s = None if self._started_s is None else self._clock() - self._started_s
        text = [] if event.text == self._told else wording.answer(event.text)
        self._show.end()
        self._show.lines(text + wording.ended(event, elapsed_s, self._show.width))
        self._show.stop()


class _Plain:
    """Every line once, when it is final."""

    width = PLAIN_WIDTH

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def lines(self, lines: list[Line]) -> None:
        for line in lines:
            self._stream.write(_encodable(line.text, self._stream) + "\n")
        self._stream.flush()

    def step(self, step: int) -> None:
        self.lines([Line(f"step {step}")])

    def finished(self, event: CallFinished, lines: list[Line]) -> None:
        self.lines(lines)

    def delta(self, text: str) -> None: ...
    def running(self, event: CallStarted) -> None: ...
    def drop_text(self) -> None: ...
    def replied(self) -> None: ...
    def end(self) -> None: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...


@dataclass
class _Row:
    """A call of the running step."""

    label: str
    started_s: float
    lines: list[Line] | None = None
    """None while it runs."""


@dataclass
class _Running:
    """What is redrawn: the text that is coming, the calls that run, else that the model is asked."""

    clock: Callable[[], float]
    step: int = 0
    since_s: float = 0.0
    is_asking: bool = False
    text: str = ""
    rows: dict[int, _Row] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.lock:
            now_s = self.clock()
            frame = _FRAMES[int(now_s * 10) % len(_FRAMES)]
            if self.rows:
                for row in self.rows.values():
                    yield from self._row(row, frame, now_s, options.max_width)
            elif self.step:
                for line in visible(self.text).splitlines()[-SHOWN_TEXT_LINES:]:
                    yield Text(line, overflow="ellipsis", no_wrap=True)
                doing = "the model answers" if self.is_asking else "calls"
                yield Text(f"  {frame} step {self.step}: {doing}  {wording.duration(now_s - self.since_s)}", "dim")

    def _row(self, row: _Row, frame: str, now_s: float, width: int) -> Iterator[Text]:
        if row.lines is not None:
            yield from (Text(line.text, line.style, overflow="ellipsis", no_wrap=True) for line in row.lines)
            return
        tail = f"  {wording.duration(now_s - row.started_s)}"
        label = visible_line(row.label, max(width - len(tail) - 4, 10))
        yield Text.assemble(f"  {frame} {label}", (tail, "dim"))


class _Live:
    """Redraws what runs below what is final."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._clock = clock
        self._running = _Running(clock)
        self._live: Live | None = None

    @property
    def width(self) -> int:
        return max(self._console.width, wording.MIN_WIDTH)

    def lines(self, lines: list[Line]) -> None:
        for line in lines:
            self._console.print(Text(line.text, line.style), soft_wrap=False)

    def step(self, step: int) -> None:
        self._flush(is_all=True)
        with self._running.lock:
            self._running.step, self._running.since_s = step, self._clock()
            self._running.is_asking, self._running.text = True, ""
        self.resume()

    def delta(self, text: str) -> None:
        with self._running.lock:
            # Only the end is shown; a megabyte of text is not looked through ten times a second.
            self._running.text = (self._running.text + text)[-4000:]

    def running(self, event: CallStarted) -> None:
        with self._running.lock:
            label = f"{event.tool} {event.summary}"
            self._running.rows[event.index] = _Row(label, self._clock())

    def finished(self, event: CallFinished, lines: list[Line]) -> None:
        with self._running.lock:
            row = self._running.rows.setdefault(event.index, _Row(event.tool, self._clock()))
            row.lines = lines
        self._flush(is_all=False)

    def drop_text(self) -> None:
        with self._running.lock:
            self._running.text = ""

    def replied(self) -> None:
        with self._running.lock:
            self._running.is_asking, self._running.text = False, ""
            self._running.since_s = self._clock()

    def end(self) -> None:
        self._flush(is_all=True)
        with self._running.lock:
            self._running.step = 0

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def resume(self) -> None:
        if self._live is None and self._running.step:
            self._live = Live(
                self._running, console=self._console, transient=True, refresh_per_second=10, redirect_stdout=False
            )
            self._live.start()

    def _flush(self, *, is_all: bool) -> None:
        """Prints finished calls for good, in the model's order: those before the first that still runs, or all."""
        with self._running.lock:
            done = []
            for index in sorted(self._running.rows):
                lines = self._running.rows[index].lines
                if lines is None and not is_all:
                    break
                done.extend(lines or [])
                del self._running.rows[index]
        self.lines(done)


def _encodable(text: str, stream: TextIO) -> str:
    """`text` with what the stream's encoding lacks escaped: a log in ASCII is better than an error."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
