"""What happened in a session, one frozen model per kind: loop → **events** → transcript, timeline.

The loop hands every event to its sinks in order. The transcript keeps them as they are (all but `SHOWN_ONLY`),
the timeline shows them. A reader of an older or newer transcript ignores fields it does not know.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from coordinator.endpoint.reply import RawCall, Usage
from coordinator.session.limits import Limits

CallStatus = Literal["success", "partial", "error"]
SessionStatus = Literal["completed", "stopped", "failed", "cancelled"]


class _Event(BaseModel):
    """Shared settings of all events; their validators are built at first use, to start fast."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class CutInfo(BaseModel):
    """How much of an answer the model does not see."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    total_bytes: int
    """Size of the whole result."""
    shown_bytes: int
    """How much of it the answer carries."""
    path: str | None = None
    """Where the model can read the rest, as seen from its box; None when it was not kept."""


class TodoItem(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    content: str
    """What is to be done."""
    status: Literal["pending", "in_progress", "completed"]
    """At most one is in progress."""


class SessionStarted(_Event):
    """The session exists: everything that was decided before the first request."""

    type: Literal["session_started"] = "session_started"
    session_id: str
    """The session's name, also that of its transcript."""
    prompt: str
    """What the user asked for."""
    model: str
    """The model's name as sent to the endpoint."""
    policy: str
    """guarded or boxed."""
    workspace_mode: Literal["bind", "copy"]
    """Whether the box works on the user's own directory or on a private copy."""
    workspace_reason: str
    """Why that mode was taken, in a few words."""
    workspace: str
    """The user's directory on the host."""
    image: str
    """The box's image."""
    max_steps: int
    """The session stops after this many model replies."""
    limits: Limits | None = None
    """All that it may use; None in transcripts of old."""
    system: str = ""
    """The system message, so that the history can be rebuilt from the transcript alone."""
    allow_hosts: list[str] = []
    """Hosts that the box may reach."""
    generation: int = 1
    """Counts the owners of the session; each writes its own transcript segment."""
    rules: str = ""
    """The user's own policy as it travels with each call; "" if there is none."""


class SystemWritten(_Event):
    """The system message is another one from now on."""

    type: Literal["system_written"] = "system_written"
    system: str
    """All of it."""


class ShortenedAnswer(BaseModel):
    """What stands in the place of an answer that was too long to stay."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    position: int
    """The `tool` message's place in the list before the compaction, from 0."""
    content: str
    """Its content from now on."""


class ContextCompacted(_Event):
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


class TokensSpent(_Event):
    """A request that gave no reply of the conversation, and what it cost all the same."""

    type: Literal["tokens_spent"] = "tokens_spent"
    step: int
    """The step it belongs to."""
    usage: Usage
    """What it cost."""
    on: Literal["retry", "summary"]
    """A try that failed after something had come, or a summary of older steps."""


class LimitsChanged(_Event):
    """What the session may use was changed while it ran."""

    type: Literal["limits_changed"] = "limits_changed"
    limits: Limits
    """All that it may use from the next step on."""


class SessionResumed(_Event):
    """Another owner goes on with the session; the first event of its segment."""

    type: Literal["session_resumed"] = "session_resumed"
    session_id: str
    """The session's name."""
    generation: int
    """That of this owner and its segment."""
    previous: int
    """The generation whose segment comes before this one."""
    accepted_bytes: int
    """How much of that segment counts: what its writer appends later does not."""
    by: str
    """Who goes on: `sandhog resume`, `takeover`."""
    model: str = ""
    """The model's name as sent to the endpoint from now on."""


class SessionPlaced(_Event):
    """The session has a place on a node, and its box stands."""

    type: Literal["session_placed"] = "session_placed"
    node: str
    """The node's name."""
    incarnation: str
    """That life of it."""
    run_id: str
    """The life of Redis in which its calls are claimed."""
    bounds: dict[str, str] = {}
    """How each writable place of the box is bounded, and to what: `{"/tmp": "tmpfs, 512 MiB"}`."""
    image_id: str = ""
    """Digest of the image that the box runs on."""


class ToolsShown(_Event):
    """The tools that the model is shown from now on: at the first request, and when they change."""

    type: Literal["tools_shown"] = "tools_shown"
    tools: list[dict[str, Any]]
    """As the endpoint gets them."""


class UserMessage(_Event):
    """A `user` message stands in the conversation; the first one is the session's prompt and is not repeated."""

    type: Literal["user_message"] = "user_message"
    text: str
    """Its content."""
    by: Literal["user", "sandhog"] = "user"
    """Whose words: a person's, or this program's to the model."""


class ReplyTaken(_Event):
    """The reply before this event stands in the conversation; one without it does not."""

    type: Literal["reply_taken"] = "reply_taken"
    call_ids: tuple[str, ...] = ()
    """The ids that its answers carry, in the order of its calls."""
    text: str | None = None
    """Its text, where it is not the reply's own."""
    has_calls: bool = True
    """False where its calls were left out."""


class TurnEnded(_Event):
    """The model has answered; the session waits for a person's next message."""

    type: Literal["turn_ended"] = "turn_ended"
    status: SessionStatus
    """How the turn ended."""
    stop_reason: str
    """Why, in one word or a short sentence."""
    text: str
    """The model's answer; "" when there is none."""


class StepStarted(_Event):
    """A request to the model goes out."""

    type: Literal["step_started"] = "step_started"
    step: int
    """From 1."""


class TextDelta(_Event):
    """A piece of the model's text while it comes; shown, never kept."""

    type: Literal["text_delta"] = "text_delta"
    step: int
    """The step it belongs to."""
    text: str
    """The piece."""


class ModelReplied(_Event):
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


class RequestFailed(_Event):
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


class CallsWritten(_Event):
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


class CallStarted(_Event):
    """A call left for the workers."""

    type: Literal["call_started"] = "call_started"
    step: int
    """The step it belongs to."""
    index: int
    """Its place in the reply, from 0."""
    call_id: str
    """The id its answer will carry."""
    tool: str
    """The tool's name."""
    summary: str = ""
    """Its arguments in one short line."""


class CallFinished(_Event):
    """A call has its one answer."""

    type: Literal["call_finished"] = "call_finished"
    step: int
    """The step it belongs to."""
    index: int
    """Its place in the reply, from 0."""
    call_id: str
    """The id the answer carries."""
    tool: str
    """The tool's name."""
    summary: str = ""
    """Its arguments in one short line."""
    status: CallStatus
    """How it ended."""
    error_code: str | None = None
    """Only on error."""
    time_ms: float = 0.0
    """From dispatch to answer."""
    cut: CutInfo | None = None
    """None when the model sees all of it."""
    answer: str
    """The content of the `tool` message, exactly as the model gets it."""
    attempt: int = 1
    """How often it was sent; only the last one ran."""
    outcome_note: str | None = None
    """What is special about how the answer came to be; None when nothing is."""


class AnswerShortened(_Event):
    """A recorded answer was cut further, because the step's answers together were too much."""

    type: Literal["answer_shortened"] = "answer_shortened"
    step: int
    """The step it belongs to."""
    index: int
    """The call's place in the reply, from 0."""
    cut: CutInfo
    """How much the model sees now."""
    answer: str
    """The content of the `tool` message, exactly as the model gets it; takes the place of the recorded one."""


class ApprovalAsked(_Event):
    """A call waits for a human's yes."""

    type: Literal["approval_asked"] = "approval_asked"
    step: int
    """The step it belongs to."""
    index: int
    """The call's place in the reply, from 0."""
    tool: str
    """The tool's name."""
    summary: str
    """What would run, whole."""
    reason: str
    """Why it is asked."""
    part: tuple[int, int] | None = None
    """Where in `summary`, in characters, stands what decided."""
    lasting: tuple[str, ...] | None = None
    """The commands that a yes for the whole session would allow; None: only the very same call."""
    within_s: float | None = None
    """How long an answer is waited for; None when a rule answers at once."""


class ApprovalAnswered(_Event):
    """The human, or the rule that stands for one, decided."""

    type: Literal["approval_answered"] = "approval_answered"
    step: int
    """The step it belongs to."""
    index: int
    """The call's place in the reply, from 0."""
    tool: str
    """The tool's name."""
    summary: str = ""
    """What would run, whole."""
    reason: str = ""
    """Why it was asked."""
    decision: Literal["allow", "deny"]
    """The answer."""
    note: str = ""
    """Who or what decided: a person, `--approve never`, the deadline."""
    message: str = ""
    """What the model is told with a no."""
    is_lasting: bool = False
    """A yes for the whole session."""


class TodosWritten(_Event):
    """The model wrote its list of things to do anew."""

    type: Literal["todos_written"] = "todos_written"
    step: int
    """The step it belongs to."""
    index: int
    """The call's place in the reply, from 0."""
    todos: tuple[TodoItem, ...]
    """All of the list, in order; empty when it was cleared."""


class BoxReplaced(_Event):
    """The box was lost and the next call gets a fresh one on the same workspace."""

    type: Literal["box_replaced"] = "box_replaced"
    reason: str
    """What ended the old box."""


class ChildStarted(_Event):
    """A sub-agent begins: a session of its own in the same box."""

    type: Literal["child_started"] = "child_started"
    step: int
    """The step of the call that it answers."""
    index: int
    """That call's place in the reply, from 0."""
    child: str
    """The sub-agent's session id."""
    description: str
    """What it is to do, in a few words."""
    profile: str
    """explore or general."""
    transcript: str
    """Path of its own transcript, relative to the directory of this one."""


class ChildEvent(_Event):
    """What a sub-agent does, while it does it; shown, never kept here: its own transcript has it."""

    type: Literal["child_event"] = "child_event"
    step: int
    """The step of the call that it answers."""
    index: int
    """That call's place in the reply, from 0."""
    child: str
    """The sub-agent's session id."""
    description: str
    """What it is to do, in a few words."""
    event: "Event"
    """What happened in it."""


class ChildEnded(_Event):
    """A sub-agent is done."""

    type: Literal["child_ended"] = "child_ended"
    step: int
    """The step of the call that it answers."""
    index: int
    """That call's place in the reply, from 0."""
    child: str
    """The sub-agent's session id."""
    description: str = ""
    """What it was to do, in a few words."""
    status: SessionStatus
    """How it ended."""
    stop_reason: str
    """Why, in one word or a short sentence."""
    steps: int
    """Model replies."""
    calls: int
    """Tool calls answered."""
    usage: Usage = Usage()
    """Sum over all its replies and those of its own sub-agents; it counts as the session's too."""
    transcript: str
    """Path of its own transcript, relative to the directory of this one."""


class Notice(_Event):
    """Something the reader should know that is none of the others."""

    type: Literal["notice"] = "notice"
    level: Literal["info", "warning", "error"] = "info"
    """How much it matters."""
    text: str
    """One or a few lines for a person."""


class SessionEnded(_Event):
    """The last event of a session."""

    type: Literal["session_ended"] = "session_ended"
    status: SessionStatus
    """How it ended."""
    stop_reason: str
    """Why, in one word or a short sentence."""
    text: str
    """The model's final answer; "" when there is none."""
    steps: int
    """Model replies."""
    calls: int
    """Tool calls answered."""
    usage: Usage = Usage()
    """Sum over all requests to the model, those of sub-agents included."""
    cost_usd: float | None = None
    """What they cost; None where the model's prices are not known."""
    patch_path: str | None = None
    """Where the workspace's changes lie as a patch; None when there is none."""
    tool_list_changes: int = 0
    """How often the tools that the model was shown changed: each time the endpoint's cache of the prompt was void."""


Event = (
    SessionStarted
    | SystemWritten
    | ContextCompacted
    | TokensSpent
    | LimitsChanged
    | SessionResumed
    | SessionPlaced
    | ToolsShown
    | UserMessage
    | ReplyTaken
    | TurnEnded
    | StepStarted
    | TextDelta
    | ModelReplied
    | RequestFailed
    | CallsWritten
    | CallStarted
    | CallFinished
    | AnswerShortened
    | ApprovalAsked
    | ApprovalAnswered
    | TodosWritten
    | BoxReplaced
    | ChildStarted
    | ChildEvent
    | ChildEnded
    | Notice
    | SessionEnded
)
"""Any event."""

SHOWN_ONLY = (TextDelta, ChildEvent)
"""Kinds that no transcript keeps."""

EventSink = Callable[[Event], None]
"""Takes one event and does not block for long. A `SandhogError` from it ends the session: it could not be kept."""

_ADAPTER: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


def parse_event(fields: Any) -> Event:
    """The event behind a decoded transcript line.

    Raises:
        pydantic.ValidationError: The type is unknown or a field does not fit.
    """
    return _ADAPTER.validate_python(fields)
