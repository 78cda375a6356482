"""What the model said, whole: wire → model, deltas → **reply** → plan.

The three shapes every other part of the loop reads; nothing here knows how they came over the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """What one request cost, as the endpoint counted it."""

    prompt_tokens: int = 0
    """Tokens sent."""
    completion_tokens: int = 0
    """Tokens made."""
    total_tokens: int = 0
    """Both together."""
    cached_tokens: int = 0
    """Of those sent: what the endpoint had in its cache."""
    is_estimated: bool = False
    """Some of it was not said by the endpoint but reckoned from sizes."""

    def plus(self, other: "Usage | None") -> "Usage":
        """The sum of both; `None` counts as nothing."""
        if other is None:
            return self
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_tokens + other.cached_tokens,
            self.is_estimated or other.is_estimated,
        )


@dataclass(frozen=True)
class RawCall:
    """One tool call as the model wrote it: complete, but neither parsed nor validated."""

    index: int
    """Place in the reply, from 0, without gaps."""
    id: str | None
    """As the endpoint gave it; None when it gave none (or an empty one)."""
    name: str
    """The tool asked for; "" when the endpoint named none."""
    arguments: str | dict[str, Any] | None
    """JSON text as a rule; an object where the endpoint sends one; None when the field was missing."""


@dataclass(frozen=True)
class ModelReply:
    """One complete reply, the same whether it was streamed or not."""

    text: str
    """The visible text; "" when there is none."""
    calls: tuple[RawCall, ...]
    """In the model's order."""
    finish_reason: str
    """The branch the loop takes: stop, tool_calls, length, content_filter, or an endpoint's word for none of them."""
    usage: Usage | None = None
    """None when the endpoint did not say."""
    refusal: str | None = None
    """The model's refusal, where the endpoint has a field for it."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The body as a non-streaming endpoint would have sent it, with every unknown field (choice 0 only)."""

    @property
    def raw_message(self) -> Mapping[str, Any]:
        """The assistant message inside `raw`; empty when there is none."""
        choices = self.raw.get("choices") or [{}]
        message = choices[0].get("message")
        return message if isinstance(message, dict) else {}
