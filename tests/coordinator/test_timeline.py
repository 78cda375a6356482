"""The timeline on a real terminal (a pseudo one) and on a plain stream."""

import io
import os
import pty
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

import pytest

from coordinator.commands import wording
from coordinator.commands.timeline import Timeline
from coordinator.endpoint.reply import RawCall, Usage
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished, CallStarted, TodosWritten
from coordinator.session.event_fields import CutInfo, TodoItem
from coordinator.session.events import ChildEvent, Event
from coordinator.session.session_events import (
    BoxReplaced,
    ChildEnded,
    ChildStarted,
    Notice,
    SessionEnded,
    SessionStarted,
)
from coordinator.session.step_events import CallsWritten, ModelReplied, RequestFailed, StepStarted, TextDelta
from tests.conftest import Until

STARTED = SessionStarted(
    session_id="s-1",
    prompt="mend\nit",
    model="m",
    policy="boxed",
    workspace_mode="copy",
    workspace_reason="owned by root",
    workspace="/src",
    image="i",
    max_steps=50,
)
REPLIED = ModelReplied(
    step=1, text="I look.", calls=tuple(RawCall(i, str(i), "Read", "{}") for i in range(2)), finish_reason="tool_calls"
)
ENDED = SessionEnded(
    status="completed",
    stop_reason="stop",
    text="All is well.",
    steps=2,
    calls=1,
    usage=Usage(1000, 20, 1020),
    patch_path="/p.patch",
)


def call_started(index: int, summary: str = "x") -> CallStarted:
    return CallStarted(step=1, index=index, call_id=str(index), tool="Read", summary=summary)


def call_finished(index: int, **fields: object) -> CallFinished:
    given = {"step": 1, "index": index, "call_id": str(index), "tool": "Read", "status": "success", "answer": "{}"}
    given["summary"] = "x"
    return CallFinished.model_validate({**given, "time_ms": 12.0, **fields})


def plain(*events: Event) -> list[str]:
    stream = io.StringIO()
    now_s = iter(range(1000))
    timeline = Timeline(stream, clock=lambda: float(next(now_s)))
    for event in events:
        timeline(event)
    timeline.close()
    return stream.getvalue().splitlines()


@dataclass
class Terminal:
    """A pseudo terminal and everything that was drawn on it."""

    stream: TextIO
    _reader: int
    _drawn: bytearray = field(default_factory=bytearray)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        while True:
            try:
                received = os.read(self._reader, 65536)
            except OSError:
                return
            if not received:
                return
            with self._changed:
                self._drawn += received
                self._changed.notify_all()

    @property
    def text(self) -> str:
        """What was drawn, without the sequences that draw it."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.decode("utf-8", "replace")).replace("\r", "")

    def wait_for(self, says: Callable[[str], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: says(self.text), 60), self.text


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    reader, writer = pty.openpty()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    screen = Terminal(stream, reader)
    thread = threading.Thread(target=screen.read)
    thread.start()
    yield screen
    stream.close()
    thread.join(60)
    os.close(reader)


def test_without_a_terminal_every_line_comes_once() -> None:
    assert plain(
        STARTED,
        StepStarted(step=1),
        TextDelta(step=1, text="I lo"),
        REPLIED,
        call_started(0, "a.txt"),
        call_started(1, "b.txt"),
        call_finished(1, summary="b.txt", status="error", error_code="NOT_FOUND"),
        call_finished(0, summary="a.txt"),
        StepStarted(step=2),
        ModelReplied(step=2, text="All is well.", finish_reason="stop"),
        ENDED,
    ) == [
        "session s-1 · m · boxed · at most 50 steps",
        "workspace: copy of /src (owned by root)",
        "› mend",
        "  it",
        "step 1",
        "I look.",
        "  ✗ Read b.txt  NOT_FOUND  12 ms",
        "  ✓ Read a.txt  12 ms",
        "step 2",
        "",
        "All is well.",
        "",
        "patch: /p.patch",
        "completed · 2 steps · 1 call · 1,020 tokens (1,000 in, 20 out) · 1.0 s",
    ]


def test_what_was_cut_and_what_is_odd_stands_below_the_call() -> None:
    cut = CutInfo(total_bytes=300_000, shown_bytes=51_200, path="/spill/1")
    assert plain(
        call_started(0), call_finished(0, status="partial", cut=cut, attempt=2, outcome_note="may have run")
    ) == [
        "  ◐ Read x  12 ms",
        "      cut: 50.0 KB of 293.0 KB shown, the rest in /spill/1",
        "      answer of attempt 2",
        "      may have run",
    ]


def test_approvals_notices_and_replaced_boxes_are_said() -> None:
    fields = {"step": 1, "index": 0, "tool": "Bash", "summary": "make\nmake test", "reason": "it changes files"}
    asked = {"part": (5, 9), "lasting": ("make", "make test"), "within_s": 600}
    assert plain(
        ApprovalAsked.model_validate({**fields, **asked}),
        ApprovalAnswered.model_validate({**fields, "decision": "allow", "note": "a person"}),
        ApprovalAnswered.model_validate({**fields, "decision": "deny", "note": "a person", "message": "not now"}),
        BoxReplaced(reason="out of memory"),
        Notice(text="careful"),
    ) == [
        "  ? Bash wants a yes: it changes files",
        "  │ make",
        "  │ make test",
        "  · ^^^^",
        "    call 1.0, waits 10 min 00 s",
        "    always would mean, wherever it comes first:",
        "  │ make",
        "    always would mean, wherever it comes first:",
        "  │ make test",
        "  ? Bash allowed (a person)",
        "  ? Bash denied (a person: not now)",
        "  ! the box was replaced: out of memory",
        "careful",
    ]


def test_failed_requests_and_calls_that_came_as_text_are_said() -> None:
    assert plain(
        RequestFailed(step=1, text="It answered 500: dead.", status=500, next_try_s=1.5),
        RequestFailed(step=1, text="It answered 403: no.", status=403),
        CallsWritten(step=1, names=("Bash", "Read"), form="tags"),
        CallsWritten(step=1, names=(), form="announced", is_last=True),
    ) == [
        "It answered 500: dead. Trying again in 1.5 s.",
        "  ! a call of Bash, Read came as text (tags); nothing was run, and the model is told so",
        "  ! a call of a tool came as text (announced); nothing was run, and the session ends",
    ]


def test_the_list_of_things_to_do_is_shown_as_it_stands() -> None:
    todos = [("read", "completed"), ("mend", "in_progress"), ("test", "pending")]
    written = {"step": 1, "index": 0, "todos": [{"content": what, "status": status} for what, status in todos]}
    assert plain(TodosWritten.model_validate(written), TodosWritten(step=1, index=0, todos=())) == [
        "  ☑ read",
        "  ▸ mend",
        "  ☐ test",
        "  the list of things to do is empty",
    ]


def test_a_session_that_did_not_complete_says_why() -> None:
    ended = SessionEnded(status="failed", stop_reason="endpoint gone", text="", steps=0, calls=0)
    assert plain(ended) == ["failed: endpoint gone · 0 steps · 0 calls · 0 tokens (0 in, 0 out)"]


HOSTILE = "\x1b[2J\x1b]0;title\x07\r\u202e"


def hostile_events() -> list[Event]:
    approval = {"step": 1, "index": 0, "tool": HOSTILE, "summary": HOSTILE, "reason": HOSTILE}
    asked = {"part": (1, 3), "lasting": (HOSTILE,), "within_s": 1}
    return [
        STARTED.model_copy(update={"prompt": HOSTILE, "model": HOSTILE, "workspace": HOSTILE}),
        StepStarted(step=1),
        TextDelta(step=1, text=HOSTILE),
        REPLIED.model_copy(update={"text": HOSTILE}),
        call_started(0, HOSTILE),
        call_finished(0, tool=HOSTILE, outcome_note=HOSTILE, cut=CutInfo(total_bytes=2, shown_bytes=1, path=HOSTILE)),
        ApprovalAsked.model_validate({**approval, **asked}),
        ApprovalAnswered.model_validate({**approval, "decision": "deny", "note": HOSTILE, "message": HOSTILE}),
        TodosWritten(step=1, index=0, todos=(TodoItem(content=HOSTILE, status="pending"),)),
        BoxReplaced(reason=HOSTILE),
        Notice(text=HOSTILE),
        RequestFailed(step=1, text=HOSTILE, body=HOSTILE, next_try_s=1.0),
        CallsWritten(step=1, names=(HOSTILE,), form="tags"),
        ENDED.model_copy(update={"text": HOSTILE, "stop_reason": HOSTILE, "patch_path": HOSTILE, "status": "failed"}),
    ]


def test_no_foreign_text_acts_on_the_terminal() -> None:
    text = "\n".join(plain(*hostile_events()))
    assert not set("\x1b\x07\r\u202e") & set(text)
    assert text.count("␛[2J") >= 12


def test_on_a_terminal_no_foreign_text_acts_either(terminal: Terminal) -> None:
    timeline = Timeline(terminal.stream)
    for event in hostile_events():
        timeline(event)
    terminal.wait_for(lambda text: "failed: ␛[2J" in text)
    assert not set("\x07\u202e") & set(terminal.text)
    assert "\x1b" not in terminal.text


def test_a_narrow_stream_keeps_a_call_on_one_line() -> None:
    (line,) = plain(call_started(0), call_finished(0, summary="x" * 5000))
    assert len(line) <= 160
    assert line.endswith("…  12 ms")


def test_a_stream_in_ascii_does_not_stop_the_session() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    timeline = Timeline(stream)
    timeline(call_finished(0))
    stream.seek(0)
    assert stream.read() == "  \\u2713 Read x  12 ms\n"


def test_on_a_terminal_what_runs_is_redrawn_and_what_ended_stays(terminal: Terminal) -> None:
    timeline = Timeline(terminal.stream)
    timeline(STARTED)
    timeline(StepStarted(step=1))
    timeline(TextDelta(step=1, text="I am think"))
    timeline(TextDelta(step=1, text="ing"))
    terminal.wait_for(lambda text: "I am thinking" in text and "step 1: the model answers" in text)
    timeline(REPLIED)
    timeline(call_started(0, "slow.txt"))
    timeline(call_started(1, "fast.txt"))
    terminal.wait_for(lambda text: re.search(r"⠋|⠙|⠹|⠸|⠼|⠴|⠦|⠧|⠇|⠏ Read slow.txt", text) is not None)
    timeline(call_finished(1, summary="fast.txt"))
    terminal.wait_for(lambda text: "✓ Read fast.txt" in text)
    timeline(call_finished(0, summary="slow.txt"))
    timeline(ENDED)
    terminal.wait_for(lambda text: "completed · 2 steps" in text)
    # For good they stand in the model's order.
    assert terminal.text.rindex("✓ Read slow.txt") < terminal.text.rindex("✓ Read fast.txt")
    assert "All is well." in terminal.text


def test_the_terminal_is_left_alone_while_someone_is_asked(terminal: Terminal, until: Until) -> None:
    timeline = Timeline(terminal.stream)
    timeline(StepStarted(step=1))
    terminal.wait_for(lambda text: "step 1" in text)
    with timeline.paused():
        terminal.stream.write("allow? ")
        terminal.stream.flush()
        terminal.wait_for(lambda text: text.endswith("allow? "))
        # It draws nothing any more; that it has ended may take a moment.
        until(lambda: not any("Refresh" in type(one).__name__ for one in threading.enumerate()), "nobody draws")
    terminal.wait_for(lambda text: "step 1" in text.rpartition("allow? ")[2])
    timeline.close()


def test_closing_gives_the_cursor_back_and_may_be_repeated(terminal: Terminal) -> None:
    timeline = Timeline(terminal.stream)
    timeline(StepStarted(step=1))
    timeline.close()
    timeline.close()
    terminal.stream.write("end")
    terminal.stream.flush()
    terminal.wait_for(lambda text: text.endswith("end"))
    drawn = bytes(terminal._drawn)
    assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")


def test_text_of_a_reply_that_broke_off_is_forgotten(terminal: Terminal) -> None:
    timeline = Timeline(terminal.stream)
    timeline(StepStarted(step=1))
    timeline(TextDelta(step=1, text="false start"))
    terminal.wait_for(lambda text: "false start" in text)
    timeline(RequestFailed(step=1, text="broke off", next_try_s=1.0))
    terminal.wait_for(lambda text: "broke off" in text)
    before = terminal.text.index("broke off")
    timeline(TextDelta(step=1, text="again"))
    terminal.wait_for(lambda text: "again" in text.rpartition("broke off")[2])
    timeline.close()
    assert "false start" not in terminal.text[before:].partition("again")[2]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0123, "12 ms"), (3.44, "3.4 s"), (59.94, "59.9 s"), (125, "2 min 05 s"), (3600, "60 min 00 s")],
)
def test_durations_read_well(seconds: float, words: str) -> None:
    assert wording.duration(seconds) == words


@pytest.mark.parametrize(("size_bytes", "words"), [(512, "512 B"), (51_200, "50.0 KB"), (1_300_000, "1.2 MB")])
def test_sizes_read_well(size_bytes: int, words: str) -> None:
    assert wording.size(size_bytes) == words


def test_what_sub_agents_do_stands_indented_under_their_names() -> None:
    stream = io.StringIO()
    timeline = Timeline(stream, is_live=False)

    def did(child: str, event: Event) -> ChildEvent:
        return ChildEvent(step=1, index=0, child=child, description=f"task {child}\x1b[31m", event=event)

    def call(tool: str) -> CallFinished:
        return CallFinished(step=1, index=0, call_id="c", tool=tool, summary="x", status="success", answer="{}")

    begun = ChildStarted(step=1, index=0, child="a", description="task a", profile="explore", transcript="t")
    ended = ChildEnded(
        step=1, index=0, child="a", description="task a", status="stopped", stop_reason="limit: steps", steps=2,
        calls=3, usage=Usage(10, 2, 12), transcript="t",
    )  # fmt: skip
    quiet: list[Event] = [did("a", TextDelta(step=1, text="never shown")), did("a", REPLIED), did("a", STARTED)]
    events: list[Event] = [begun, *quiet, did("a", call("Read")), did("a", call("Grep")), did("b", call("Glob"))]
    events += [did("b", did("c", call("Write"))), did("a", Notice(level="warning", text="odd")), ended]
    for event in events:
        timeline(event)

    lines = stream.getvalue().splitlines()
    assert [line[:16].rstrip() for line in lines] == [
        "  ┆ ▸ explore: t",
        "  ┆ task a␛[31m:",
        "  ┆   ✓ Read x",
        "  ┆   ✓ Grep x",
        "  ┆ task b␛[31m:",
        "  ┆   ✓ Glob x",
        "  ┆   ┆   ✓ Writ",
        "  ┆ task a␛[31m:",
        "  ┆   ! odd",
        "  ┆ ◂ task a · s",
    ], lines
    assert "stopped: limit: steps · 2 steps · 3 calls · 12 tokens" in lines[-1]
