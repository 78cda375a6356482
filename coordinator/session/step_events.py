"""Events of a step: what goes to the model, what it says, and what becomes of the conversation."""

from typing import Any, Literal

from pydantic import Field

from coordinator.endpoint.reply import RawCall, Usage
from coordinator.session.event_fields import EventFields, ShortenedAnswer


class UserMessage(EventFields):
    """A `user` message stands in the conversation; the first one is the session's prompt and is not repeated."""

    type: Literal["user_message"] = "user_message"
    text: str
    """Its content."""
    by: Literal["user", "sandhog"] = "user"
    """Whose words: a person's, or this program's to the model."""


class ToolsShown(EventFields):
    """The tools that the model is shown from now on: at the first request, and when they change."""

    type: Literal["tools_shown"] = "tools_shown"
    tools: list[dict[str, Any]]
    """As the endpoint gets them."""


class StepStarted(EventFields):
    """A request to the model goes out."""

    type: Literal["step_started"] = "step_started"
    step: int
    """From 1."""


class TextDelta(EventFields):
    """A piece of the model's text while it comes; shown, never kept."""

    type: Literal["text_delta"] = "text_delta"
    step: int
    """The step it belongs to."""
    text: str
    """The piece."""


class ModelReplied(EventFields):
    """A whole reply arrived."""

    type: Literal["model_replied"] = "model_replied"
    step: int
    """The step it belongs to."""
    text: str
    """The visible text; "" when there is none."""
    calls: tuple[RawCall, ...] = ()
    """What it asks for, in order."""
    finish_reason: str
    """The branch that was taken; `raw` has the endpoint's own word."""
    usage: Usage | None = None
    """None when the endpoint did not say."""
    refusal: str | None = None
    """The model's refusal, where the endpoint has a field for it."""
    raw: dict[str, Any] = Field(default_factory=dict)
    """The reply's body with every field, as if it had not been streamed."""


class RequestFailed(EventFields):
    """A request to the model gave no reply."""

    type: Literal["request_failed"] = "request_failed"
    step: int
    """The step it belongs to."""
    text: str
    """What went wrong, with the endpoint's own words."""
    status: int | None = None
    """The HTTP status, where there was one."""
    code: str | None = None
    """The endpoint's error code, where it gave one."""
    body: str = ""
    """What the endpoint sent, its beginning."""
    next_try_s: float | None = None
    """The pause before the next try; None where no other follows."""


class CallsWritten(EventFields):
    """The reply before this event holds calls as text; nothing of it was run, and it is no answer."""

    type: Literal["calls_written"] = "calls_written"
    step: int
    """The step it belongs to."""
    names: tuple[str, ...]
    """The tools that it names, as far as they can be read."""
    form: str
    """How the first of them was written: tags, fence, json, python; announced where it only says so."""
    is_last: bool = False
    """The model was told before, and the session ends by it."""


class ReplyTaken(EventFields):
    """The reply before this event stands in the conversation; one without it does not."""

    type: Literal["reply_taken"] = "reply_taken"
    call_ids: tuple[str, ...] = ()
    """The ids that its answers carry, in the order of its calls."""
    text: str | None = None
    """Its text, where it is not the reply's own."""
    has_calls: bool = True
    """False where its calls were left out."""


class TokensSpent(EventFields):
    """A request that gave no reply of the conversation, and what it cost all the same."""

    type: Literal["tokens_spent"] = "tokens_spent"
    step: int
    """The step it belongs to."""
    usage: Usage
    """What it cost."""
    on: Literal["retry", "summary"]
    """A try that failed after something had come, or a summary of older steps."""


class ContextCompacted(EventFields):
    """The messages that the model gets became fewer or shorter; what was recorded before stays as it is.

    Applied to the list as it was, the event gives the list as it became.
    """

    type: Literal["context_compacted"] = "context_compacted"
    step: int
    """The step before whose request it was done."""
    tokens_before: int
    """Size of the request, as far as it was known."""
    tokens_after: int
    """Its size now."""
    counted_by: str
    """Where these sizes come from: endpoint, tiktoken or bytes."""
    shortened: tuple[ShortenedAnswer, ...] = ()
    """Answers that became shorter."""
    removed: int = 0
    """How many messages behind the system message one note stands for now; 0: none."""
    requests: tuple[str, ...] = ()
    """What the user said in them, word for word."""
    summary: str = ""
    """What was done in them."""
    is_by_model: bool = False
    """The model wrote the summary; else it is a list of its calls."""
