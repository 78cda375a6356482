"""Events in words: events → **wording** → timeline. Pure; every foreign text is made visible here."""

from dataclasses import dataclass

from coordinator.commands.marking import marked_lines
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished, TodosWritten
from coordinator.session.events import ChildEvent, Event
from coordinator.session.session_events import (
    BoxReplaced,
    ChildEnded,
    ChildStarted,
    LimitsChanged,
    Notice,
    SessionEnded,
    SessionForked,
    SessionResumed,
    SessionStarted,
    TurnEnded,
)
from coordinator.session.step_events import CallsWritten, ContextCompacted, RequestFailed, UserMessage
from coordinator.visible import visible, visible_line

MIN_WIDTH = 40
"""A narrower terminal wraps."""

GLYPHS = {"success": "✓", "partial": "◐", "error": "✗"}
TODO_GLYPHS = {"pending": ("☐", ""), "in_progress": ("▸", "bold"), "completed": ("☑", "dim")}
STYLES = {"success": "green", "partial": "yellow", "error": "red"}

CHILD = "  ┆ "
"""Before every line of a sub-agent."""


@dataclass(frozen=True)
class Line:
    """One piece of output: text without any control character but newlines, and how to colour it."""

    text: str
    """May hold several lines."""
    style: str = ""
    """A rich style; "" for none."""


def started(event: SessionStarted, width: int) -> list[Line]:
    """Who works where on what."""
    where = f"{event.workspace_mode} of {visible_line(event.workspace, width)}"
    facts = " · ".join(
        [event.session_id, visible_line(event.model, 60), event.policy, f"at most {event.max_steps} steps"]
    )
    return [
        Line(f"session {facts}", "bold"),
        Line(f"workspace: {where} ({visible_line(event.workspace_reason, width)})", "dim"),
        Line("› " + visible(event.prompt).rstrip("\n").replace("\n", "\n  "), "cyan"),
    ]


def context_compacted(event: ContextCompacted) -> Line:
    """How much room was made, and how."""
    ways = [counted(len(event.shortened), "result") + " shortened"] if event.shortened else []
    ways += [counted(event.removed, "message") + " summarised"] if event.removed else []
    shown = f"{event.tokens_before:,} → {event.tokens_after:,} tokens"
    return Line(f"  the context was compacted: {shown} ({', '.join(ways)})", "yellow")


def limits_changed(event: LimitsChanged) -> Line:
    """What the session may use from now on."""
    shown = [f"{name.replace('_', ' ')} {most:g}" for name, most in event.limits if most is not None]
    return Line("  limits are now: " + ", ".join(shown), "yellow")


def resumed(event: SessionResumed) -> list[Line]:
    """Who goes on with what."""
    return [Line(f"session {event.session_id} goes on (part {event.generation}, {event.by})", "bold")]


def forked(event: SessionForked) -> list[Line]:
    """Where the fork's own part begins."""
    return [Line(f"— up to here session {visible(event.session_id)}, to the end of its step {event.at_step} —", "bold")]


def user_message(event: UserMessage) -> list[Line]:
    """A message, marked as a prompt is; what this program says to the model is dim."""
    return [
        Line("› " + visible(event.text).rstrip("\n").replace("\n", "\n  "), "cyan" if event.by == "user" else "dim")
    ]


def request_failed(event: RequestFailed) -> list[Line]:
    """Why the model is asked once more; nothing where it is not: the session's end says it."""
    if event.next_try_s is None:
        return []
    return [Line(f"{visible(event.text).rstrip('.')}. Trying again in {event.next_try_s:.1f} s.", "yellow")]


def calls_written(event: CallsWritten) -> Line:
    """That a call came as text."""
    names = ", ".join(visible_line(name, 60) for name in event.names) or "a tool"
    then = "the session ends" if event.is_last else "the model is told so"
    return Line(f"  ! a call of {names} came as text ({event.form}); nothing was run, and {then}", "yellow")


def answer(text: str) -> list[Line]:
    """The model's last words, apart from what is around them; nothing where it said nothing."""
    return [Line("\n" + visible(text).strip("\n") + "\n")] if text.strip() else []


def turn_ended(event: TurnEnded, width: int) -> list[Line]:
    """The model's answer, and why it stopped where that was not because it was done."""
    if event.status == "completed":
        return answer(event.text)
    return [*answer(event.text), Line(f"{event.status}: {visible_line(event.stop_reason, 2 * width)}", "bold red")]


def call_finished(event: CallFinished, width: int) -> list[Line]:
    """A call's line, and below it what its answer does not show or how it came to be."""
    tail = f"  {duration(event.time_ms / 1000)}"
    if event.error_code is not None:
        tail = f"  {event.error_code}{tail}"
    head = f"  {GLYPHS[event.status]} {visible_line(event.tool, 30)} "
    room = max(width - len(head) - len(tail), 10)
    lines = [Line(head + visible_line(event.summary, room) + tail, STYLES[event.status])]
    notes = []
    if event.cut is not None:
        rest = f", the rest in {visible_line(event.cut.path, width)}" if event.cut.path else ""
        notes.append(f"cut: {size(event.cut.shown_bytes)} of {size(event.cut.total_bytes)} shown{rest}")
    if event.attempt > 1:
        notes.append(f"answer of attempt {event.attempt}")
    if event.outcome_note:
        notes.append(visible_line(event.outcome_note, 2 * width))
    return [*lines, *(Line(f"      {note}", "yellow") for note in notes)]


def approval_asked(event: ApprovalAsked, width: int) -> list[Line]:
    """The whole of what would run, the deciding part marked: nothing of it is cut, so that nothing can hide."""
    reason = visible_line(event.reason, 8 * width)
    lines = [Line(f"  ? {visible_line(event.tool, 30)} wants a yes: {reason}", "bold yellow")]
    lines += [Line(line, "yellow") for line in marked_lines(event.summary, event.part, width)]
    if event.within_s is not None:
        lines.append(Line(f"    call {event.step}.{event.index}, waits {duration(event.within_s)}", "dim"))
        for command in event.lasting or ():
            lines.append(Line("    always would mean, wherever it comes first:", "dim"))
            lines += [Line(line, "dim") for line in marked_lines(command, None, width)]
    return lines


def approval_answered(event: ApprovalAnswered, width: int) -> list[Line]:
    """What was decided, and by whom."""
    words, style = ("allowed", "green") if event.decision == "allow" else ("denied", "red")
    said = [event.note, *([event.message] if event.decision == "deny" else [])]
    note = visible_line(": ".join(words for words in said if words), 2 * width)
    note = f" ({note})" if note else ""
    return [Line(f"  ? {visible_line(event.tool, 30)} {words}{note}", style)]


def todos_written(event: TodosWritten, width: int) -> list[Line]:
    """The list, one line each."""
    if not event.todos:
        return [Line("  the list of things to do is empty", "dim")]
    lines = []
    for todo in event.todos:
        glyph, style = TODO_GLYPHS[todo.status]
        lines.append(Line(f"  {glyph} {visible_line(todo.content, max(width - 4, 10))}", style))
    return lines


def child_started(event: ChildStarted, width: int) -> list[Line]:
    """Which sub-agent begins."""
    return [Line(f"{CHILD}▸ {event.profile}: {visible_line(event.description, max(width - 20, 10))}", "cyan")]


def speaker(event: ChildEvent, width: int) -> Line:
    """Whose lines follow."""
    return Line(f"{CHILD}{visible_line(event.description, max(width - 8, 10))}:", "dim")


def child_did(event: Event, width: int) -> list[Line]:
    """What a sub-agent did, below its session's own calls; nothing for what is its transcript's matter."""
    inner = width - len(CHILD)
    match event:
        case CallFinished():
            lines = call_finished(event, inner)
        case ApprovalAsked():
            lines = approval_asked(event, inner)
        case ApprovalAnswered():
            lines = approval_answered(event, inner)
        case BoxReplaced():
            lines = [Line(f"  ! the box was replaced: {visible(event.reason)}", "yellow")]
        case Notice() if event.level != "info":
            lines = [Line(f"  ! {visible(event.text)}", "yellow")]
        case ChildStarted():
            lines = child_started(event, inner)
        case ChildEvent():
            lines = child_did(event.event, inner)
        case ChildEnded():
            lines = child_ended(event, inner)
        case _:
            lines = []
    return [Line(CHILD + line.text.replace("\n", f"\n{CHILD}"), line.style) for line in lines]


def child_ended(event: ChildEnded, width: int) -> list[Line]:
    """How a sub-agent ended, and what it cost."""
    why = "" if event.status == "completed" else f": {visible_line(event.stop_reason, width)}"
    facts = [
        f"{event.status}{why}",
        counted(event.steps, "step"),
        counted(event.calls, "call"),
        f"{event.usage.total_tokens:,} tokens",
    ]
    style = "cyan" if event.status == "completed" else "yellow"
    return [Line(f"{CHILD}◂ {visible_line(event.description, 40)} · {' · '.join(facts)}", style)]


def ended(event: SessionEnded, elapsed_s: float | None, width: int) -> list[Line]:
    """The last line: how it ended and what it cost."""
    usage = event.usage
    facts = [
        f"{event.status}" + ("" if event.status == "completed" else f": {visible_line(event.stop_reason, 2 * width)}"),
        counted(event.steps, "step"),
        counted(event.calls, "call"),
        f"{'about ' if usage.is_estimated else ''}{usage.total_tokens:,} tokens "
        f"({usage.prompt_tokens:,} in, {usage.completion_tokens:,} out)",
    ]
    if event.cost_usd is not None:
        facts.append(f"${event.cost_usd:.4f}")
    if elapsed_s is not None:
        facts.append(duration(elapsed_s))
    lines = [Line(" · ".join(facts), "bold green" if event.status == "completed" else "bold red")]
    if event.patch_path:
        lines.insert(0, Line(f"patch: {visible_line(event.patch_path, 4 * width)}", "dim"))
    return lines


def duration(seconds: float) -> str:
    """Such as `12 ms`, `3.4 s`, `2 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def size(size_bytes: int) -> str:
    """Such as `512 B`, `48.0 KB`, `1.2 MB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    if size_bytes < 1024 * 1024:
        return f"{size_bytes / 1024:.1f} KB"
    return f"{size_bytes / (1024 * 1024):.1f} MB"


def counted(number: int, noun: str) -> str:
    """Such as `1 step`, `3 steps`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
