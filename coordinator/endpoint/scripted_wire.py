"""The chat completions wire from its other end: what a strict endpoint takes, and how it writes its replies."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.errors import HistoryInvalid
from coordinator.session.history import validate


def check_request(body: Any) -> None:
    """Come back if a strict endpoint takes the request.

    Raises:
        HistoryInvalid: it breaks the protocol.
    """
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise HistoryInvalid("model must be a string")
    validate(body.get("messages"), for_request=True)
    tools = body.get("tools", None)
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise HistoryInvalid("tools must be a list that is not empty, or missing")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function" or not function.get("name"):
            raise HistoryInvalid("each tool must be {type: function, function: {name, …}}")


def usage_of(message: Mapping[str, Any], request_bytes: int) -> dict[str, int]:
    """Return a reply's usage, at four bytes a token: not true, but steady."""
    completion = len(json.dumps(message)) // 4
    prompt = request_bytes // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def stream_of(
    message: Mapping[str, Any],
    envelope: Mapping[str, Any],
    *,
    finish_reason: str,
    usage: Mapping[str, int] | None,
    chunk_chars: int,
) -> Iterator[bytes]:
    """Yield an assistant message as stream events, the way OpenAI cuts it.

    Args:
        message: As it would come unstreamed.
        envelope: The fields that every chunk has.
        finish_reason: Said by the last chunk.
        usage: Sent in a chunk of its own; None for no such chunk.
        chunk_chars: Characters of text or arguments in one chunk.
    """

    def event(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _event({**envelope, "object": "chat.completion.chunk", "choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    for piece in _pieces(message["content"] or "", chunk_chars):
        yield event({"content": piece})
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function"}
        yield event({"tool_calls": [{**head, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in _pieces(function["arguments"], chunk_chars):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, finish_reason)
    if usage is not None:
        yield _event({**envelope, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), max(1, size)))
