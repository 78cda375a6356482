"""A session's conversation in the formats of others: rebuild → **exporting** → file.

What is exported is all that was said, also where the model went on with a summary of it; a list that a strict endpoint
would refuse is never written.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from coordinator.session.history import validate
from coordinator.session.reading import SessionReading
from coordinator.session.rebuild import Rebuilt, rebuild

UNANSWERED = '{"status":"error","error_code":"CANCELLED","text":"The session ended before this call had an answer."}'


class ExportFormat(StrEnum):
    """How a conversation is written."""

    CHAT = "chat"
    """One JSON object: messages, tools, and what the session was."""
    OPENAI_JSONL = "openai-jsonl"
    """One line with messages and tools, as fine-tuning takes them; no field of an endpoint's own."""
    MARKDOWN = "markdown"
    """To be read by people."""


def export(reading: SessionReading, form: ExportFormat, *, as_sent: bool = False) -> str:
    """Return a session's conversation as text that ends with a newline.

    Args:
        reading: The session.
        form: How it is written.
        as_sent: The messages as the model had them last, older steps summarised.

    Raises:
        HistoryInvalid: the transcript lacks so much that no valid list is left.
    """
    rebuilt = rebuild(reading.entries, is_compacted=as_sent)
    if rebuilt.open_step is not None:
        for at in rebuilt.open_step.missing:
            rebuilt.open_step.answers[at] = UNANSWERED
        rebuilt.history.add_answers(rebuilt.open_step.in_order())
    messages = rebuilt.history.messages
    validate(messages)
    match form:
        case ExportFormat.CHAT:
            return json.dumps(_chat(reading, rebuilt), ensure_ascii=False, indent=2) + "\n"
        case ExportFormat.OPENAI_JSONL:
            line: dict[str, Any] = {"messages": [_plain(message) for message in messages]}
            if rebuilt.tools:
                line["tools"] = rebuilt.tools
            return json.dumps(line, ensure_ascii=False) + "\n"
        case ExportFormat.MARKDOWN:
            return "\n".join(_markdown(message) for message in messages)


def _chat(reading: SessionReading, rebuilt: Rebuilt) -> dict[str, Any]:
    started, ended = rebuilt.started, rebuilt.ended
    return {
        "session_id": reading.session_id,
        "model": started.model if started else None,
        "status": ended.status if ended else None,
        "stop_reason": ended.stop_reason if ended else None,
        "started_at": reading.entries[0].at if reading.entries else None,
        "steps": rebuilt.steps,
        "calls": rebuilt.calls,
        "messages": rebuilt.history.messages,
        "tools": rebuilt.tools,
    }


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the protocol's own fields only."""
    plain = {name: message[name] for name in ("role", "content", "tool_call_id") if name in message}
    if "tool_calls" in message:
        plain["tool_calls"] = [
            {name: call[name] for name in ("id", "type", "function")} for call in message["tool_calls"]
        ]
    return plain


def _markdown(message: Mapping[str, Any]) -> str:
    parts = [f"## {message['role']}\n"]
    if message.get("content"):
        is_answer = message["role"] == "tool"
        parts.append(_fenced(message["content"]) if is_answer else f"{message['content']}\n")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(f"`{function['name']}`\n\n{_fenced(function['arguments'])}")
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """The text between fences that nothing in it can close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}json\n{text}\n{fence}\n"
