"""Gather a streamed reply until it equals the unstreamed one: sse → fragments, **deltas** → reply.

Pure: chunks in, `ModelReply` out. Endpoints differ in what they leave out, so the rules here are about shapes
seen in the wild: ids only in the first delta, no `index`, one index for several calls, arguments as an object,
content as a list of parts, usage in a chunk of its own or inside the choice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.endpoint.failures import error_in_reply
from coordinator.endpoint.finish_reasons import BROKEN_OFF, branch_of
from coordinator.endpoint.fragments import (
    CallFragments,
    fragment_id,
    fragment_index,
    fragment_name,
    mend,
    merge_fields,
    settled,
)
from coordinator.endpoint.reply import ModelReply, RawCall, Usage
from coordinator.errors import ReplyBroken

_NOT_ENVELOPE = frozenset({"choices", "usage", "object"})
_NOT_CHOICE = frozenset({"delta", "message", "finish_reason", "index", "usage"})
_NOT_MESSAGE = frozenset({"content", "refusal", "tool_calls"})


def parse_chunk(data: str) -> dict[str, Any]:
    """One chunk or body from its JSON text.

    Raises:
        ReplyBroken: Not JSON, or not an object.
        ModelRefused, ModelUnavailable, ContextTooLong: It is an error the endpoint sends inside a 200.
    """
    try:
        chunk = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise ReplyBroken(f"The endpoint sent something that is not JSON: {_short(data)}") from exc
    if isinstance(chunk, list) and len(chunk) == 1 and isinstance(chunk[0], dict) and chunk[0].get("error"):
        chunk = chunk[0]
    if not isinstance(chunk, dict):
        raise ReplyBroken(f"The endpoint sent JSON that is not an object: {_short(data)}")
    if chunk.get("error") or chunk.get("object") == "error":
        raise error_in_reply(chunk.get("error") or chunk)
    return chunk


def gather_unstreamed(body: Mapping[str, Any]) -> ModelReply:
    """The reply inside a non-streaming body.

    Raises:
        ReplyBroken: Not a complete chat completion.
    """
    gatherer = ReplyGatherer()
    gatherer.add(body)
    if gatherer.is_empty or not body.get("choices"):
        raise ReplyBroken(f"The endpoint's answer holds no choices: {_short(json.dumps(body))}")
    # A body that is whole JSON was not cut, whatever it leaves out.
    gatherer.is_over = True
    return gatherer.finish()


@dataclass
class ReplyGatherer:
    """Takes chunks in order and holds what they add up to. Not to be used again after `finish`."""

    is_over: bool = False
    """Whether the endpoint has said, otherwise than by a finish_reason, that nothing more comes."""
    _text: list[str] = field(default_factory=list)
    _refusal: list[str] = field(default_factory=list)
    _calls: list[CallFragments] = field(default_factory=list)
    _finish_reason: str | None = None
    _usage: Usage | None = None
    _raw_usage: Any = None
    _envelope: dict[str, Any] = field(default_factory=dict)
    _choice: dict[str, Any] = field(default_factory=dict)
    _message: dict[str, Any] = field(default_factory=dict)
    _parts: list[Any] = field(default_factory=list)
    _half: str = ""
    _old_call: CallFragments | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the endpoint has said how the reply ends."""
        return self._finish_reason is not None

    @property
    def is_empty(self) -> bool:
        """Whether no chunk has come."""
        return not (self._envelope or self._choice or self._message or self._text or self._calls or self.is_finished)

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Takes one chunk; the text it adds, fit to be shown (a half surrogate pair waits for its other half)."""
        self._envelope.update({k: v for k, v in chunk.items() if k not in _NOT_ENVELOPE and v is not None})
        self._take_usage(chunk.get("usage"))
        choice = _first_choice(chunk.get("choices"))
        if choice is None:
            return ""
        self._take_usage(choice.get("usage"))
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish_reason = reason
        merge_fields(self._choice, {k: v for k, v in choice.items() if k not in _NOT_CHOICE})
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict):
            return self._take(delta, is_whole=False)
        # A whole message closes some streams once more: what was already gathered is not taken twice.
        if isinstance(message, dict) and not (self._text or self._calls or self._old_call):
            return self._take(message, is_whole=True)
        return ""

    def finish(self) -> ModelReply:
        """The whole reply.

        Raises:
            ReplyBroken: The endpoint never said how the reply ends, or that it failed: it was cut.
        """
        text, refusal = mend("".join(self._text)), mend("".join(self._refusal)) or None
        calls = self._ordered()
        if not calls and self._old_call is not None and not self._old_call.is_empty():
            calls = [self._old_call]
        if self._finish_reason in BROKEN_OFF:
            raise ReplyBroken(f"The endpoint broke its reply off: finish_reason {self._finish_reason}.")
        if self._finish_reason is None and not (self.is_over and all(call.is_whole() for call in calls)):
            got = f"{len(text)} characters of text and {len(calls)} calls"
            raise ReplyBroken(f"The reply ended without a finish_reason, after {got}: it was cut half-way.")
        return ModelReply(
            text=text,
            calls=tuple(RawCall(i, c.id, mend(c.name), c.arguments()) for i, c in enumerate(calls)),
            finish_reason=branch_of(self._finish_reason, has_calls=bool(calls)),
            usage=self._usage,
            refusal=refusal,
            raw=self._raw(text, refusal, calls),
        )

    def _take(self, delta: Mapping[str, Any], *, is_whole: bool) -> str:
        shown = self._take_content(delta.get("content"))
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            self._refusal.append(refusal)
        calls = delta.get("tool_calls")
        touched: list[CallFragments] = []
        for fragment in calls if isinstance(calls, list) else ():
            if isinstance(fragment, dict):
                call = self._new_call(None) if is_whole else self._call_of(fragment, touched)
                call.add(fragment)
                touched.append(call)
        self._take_old_call(delta.get("function_call"))
        merge_fields(self._message, {k: v for k, v in delta.items() if k not in _NOT_MESSAGE})
        return self._showable(shown)

    def _take_old_call(self, call: Any) -> None:
        """The one call of the protocol's first version: no list, no id, no index."""
        if not isinstance(call, dict):
            return
        if self._old_call is None:
            self._old_call = CallFragments(None)
        self._old_call.add({"function": call})

    def _take_content(self, content: Any) -> str:
        if isinstance(content, str):
            self._text.append(content)
            return content
        pieces = []
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            match part:
                case {"type": "refusal", "refusal": str(words)}:
                    self._refusal.append(words)
                case {"type": "text" | "output_text", "text": str(words)}:
                    pieces.append(words)
                case _:
                    self._parts.append(part)
        self._text.extend(pieces)
        return "".join(pieces)

    def _showable(self, piece: str) -> str:
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return mend(piece)

    def _call_of(self, fragment: Mapping[str, Any], touched: list[CallFragments]) -> CallFragments:
        """The call a fragment goes on with, or a new one."""
        index, call_id = fragment_index(fragment), fragment_id(fragment)
        same_index = [call for call in self._calls if index is None or call.index == index]
        same_id = [call for call in same_index if call_id is not None and call.id == call_id]
        candidates = same_id or same_index
        if not candidates or candidates[-1].is_left_by(fragment):
            return self._new_call(index)
        # Within one delta, two named entries without an index are two calls.
        if index is None and fragment_name(fragment) and any(call is candidates[-1] for call in touched):
            return self._new_call(index)
        return candidates[-1]

    def _new_call(self, index: int | None) -> CallFragments:
        self._calls.append(CallFragments(index))
        return self._calls[-1]

    def _ordered(self) -> list[CallFragments]:
        """By index; a call without one stays behind the call it came after. Empty ones are left out."""
        places: list[tuple[int, int]] = []
        last = -1
        for position, call in enumerate(self._calls):
            last = call.index if call.index is not None else last
            places.append((last, position))
        return [call for _, position in sorted(places) if not (call := self._calls[position]).is_empty()]

    def _take_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self._raw_usage = usage
        prompt, completion, total = (_count(usage.get(f"{kind}_tokens")) for kind in ("prompt", "completion", "total"))
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        self._usage = Usage(prompt, completion, total or prompt + completion, min(cached, prompt))

    def _raw(self, text: str, refusal: str | None, calls: list[CallFragments]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", **settled(self._message), "content": text or None}
        if refusal:
            message["refusal"] = refusal
        if self._parts:
            message["content_parts"] = self._parts
        if calls and calls != [self._old_call]:
            message["tool_calls"] = [call.raw() for call in calls]
        choice = {"index": 0, **settled(self._choice), "finish_reason": self._finish_reason, "message": message}
        return {**self._envelope, "object": "chat.completion", "choices": [choice], "usage": self._raw_usage}


def _first_choice(choices: Any) -> Mapping[str, Any] | None:
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index") in (0, None):
            return choice
    return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _no_constant(_: str) -> None:
    """NaN and infinities are not JSON; a log probability of minus infinity becomes null."""


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
