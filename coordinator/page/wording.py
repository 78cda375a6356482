"""Events, arguments and answers in words for the page: story → **wording**. Escaping is the templates'."""

import json
from typing import Any

from coordinator.session.events import Event
from coordinator.session.session_events import (
    BoxReplaced,
    LimitsChanged,
    Notice,
    SessionEnded,
    SessionForked,
    SessionPlaced,
    SessionResumed,
    TurnEnded,
)
from coordinator.session.step_events import CallsWritten, ContextCompacted, RequestFailed


def note(event: Event) -> tuple[str, str] | None:
    """Return how much an event matters (info, warning, error, good) and what it says; None for one that is not told."""
    match event:
        case Notice():
            return event.level, event.text
        case RequestFailed():
            again = f"; next try in {event.next_try_s:.0f} s" if event.next_try_s is not None else ""
            return "warning", f"the model gave no reply: {event.text}{again}"
        case SessionPlaced():
            return "info", f"box on {event.node}"
        case SessionForked():
            return "info", f"a fork from here on: before it is session {event.session_id}, up to step {event.at_step}"
        case SessionResumed():
            return "info", f"goes on (part {event.generation}, {event.by})"
        case BoxReplaced():
            return "warning", f"a fresh box on the same workspace: {event.reason}"
        case SessionEnded():
            level = {"completed": "good", "failed": "error"}.get(event.status, "warning")
            return level, f"{event.status}: {event.stop_reason}"
        case _:
            return _of_the_conversation(event)


def _of_the_conversation(event: Event) -> tuple[str, str] | None:
    match event:
        case ContextCompacted():
            return "info", f"the context was compacted: {event.tokens_before:,} → {event.tokens_after:,} tokens"
        case LimitsChanged():
            shown = ", ".join(f"{name} {most:g}" for name, most in event.limits if most is not None)
            return "info", f"limits are now: {shown}"
        case CallsWritten():
            return "warning", f"calls written as text ({', '.join(event.names)}); none was run"
        case TurnEnded():
            return "info", f"waits for the next message ({event.stop_reason})"
        case _:
            return None


def arguments(given: str | dict[str, Any] | None) -> str:
    """Return a call's arguments as a person reads them: an object as `name: value`, other text as it is."""
    found: Any = given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            return given
    if not isinstance(found, dict):
        return "" if found is None else str(given)
    return "\n".join(f"{name}: {_value(value)}" for name, value in found.items())


def answer(content: str) -> str:
    """Return what a `tool` message says as a person reads it: its text, with what else it carries above it."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(found, dict):
        return content
    text = found.pop("text", "")
    rest = [f"{name}: {_value(value)}" for name, value in found.items() if name != "status"]
    return "\n".join([*rest, *([str(text)] if text else [])])


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"\n{value}" if "\n" in value else value
    return json.dumps(value, ensure_ascii=False)
