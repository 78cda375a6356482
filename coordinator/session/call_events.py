"""Events of a call: it left, it was asked about, it has its answer."""

from typing import Literal

from coordinator.session.event_fields import CallStatus, CutInfo, EventFields, TodoItem


class CallStarted(EventFields):
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
    run_id: str = ""
    """The life of Redis, as it was known then, or an earlier one; "" where it was not known."""


class CallFinished(EventFields):
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


class AnswerShortened(EventFields):
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


class ApprovalAsked(EventFields):
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


class ApprovalAnswered(EventFields):
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


class TodosWritten(EventFields):
    """The model wrote its list of things to do anew."""

    type: Literal["todos_written"] = "todos_written"
    step: int
    """The step it belongs to."""
    index: int
    """The call's place in the reply, from 0."""
    todos: tuple[TodoItem, ...]
    """All of the list, in order; empty when it was cleared."""
