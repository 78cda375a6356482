"""What happened in a session, one frozen model per kind: loop → **events** → transcript, timeline.

The kinds stand in `session_events`, `step_events` and `call_events`. The loop hands every event to its sinks in order.
The transcript keeps them as they are (those that are `kept`), the timeline shows them. A reader of an older or newer
transcript ignores fields it does not know.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from coordinator.session.call_events import (
    AnswerShortened,
    ApprovalAnswered,
    ApprovalAsked,
    CallFinished,
    CallStarted,
    TodosWritten,
)
from coordinator.session.event_fields import EventFields
from coordinator.session.session_events import (
    BoxReplaced,
    ChildEnded,
    ChildStarted,
    LimitsChanged,
    Notice,
    SessionEnded,
    SessionEnding,
    SessionForked,
    SessionPlaced,
    SessionResumed,
    SessionStarted,
    SystemWritten,
    TurnEnded,
)
from coordinator.session.step_events import (
    CallsWritten,
    ContextCompacted,
    ModelReplied,
    ReplyTaken,
    RequestFailed,
    StepStarted,
    TextDelta,
    TokensSpent,
    ToolsShown,
    UserMessage,
)


class ChildEvent(EventFields):
    """What a sub-agent does, while it does it: its own transcript has it. Kept here, too, is what it asks a human."""

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


SessionEvent = (
    SessionStarted
    | SessionResumed
    | SessionForked
    | SessionPlaced
    | SystemWritten
    | LimitsChanged
    | TurnEnded
    | BoxReplaced
    | ChildStarted
    | ChildEnded
    | Notice
    | SessionEnding
    | SessionEnded
)
"""What becomes of the session as a whole."""

StepEvent = (
    StepStarted
    | TextDelta
    | ModelReplied
    | RequestFailed
    | CallsWritten
    | ReplyTaken
    | UserMessage
    | ToolsShown
    | ContextCompacted
    | TokensSpent
)
"""What is said between session, model and people."""

CallEvent = CallStarted | CallFinished | AnswerShortened | ApprovalAsked | ApprovalAnswered | TodosWritten
"""What becomes of the calls of a step."""

Event = SessionEvent | StepEvent | CallEvent | ChildEvent
"""Any event."""


def is_kept(event: Event) -> bool:
    """Whether a transcript keeps an event: no text that is still coming, of a sub-agent only what it asks a human."""
    if not isinstance(event, ChildEvent):
        return not isinstance(event, TextDelta)
    # Whoever reads the session sees that it waits, without its sub-agents' transcripts.
    return isinstance(innermost(event)[1], ApprovalAsked | ApprovalAnswered)


def innermost(event: Event) -> tuple[str, Event]:
    """Return who did something, and what: a sub-agent by its id, however deep it is; "" is the session itself."""
    child = ""
    while isinstance(event, ChildEvent):
        child, event = event.child, event.event
    return child, event


EventSink = Callable[[Event], None]
"""Takes one event and does not block for long. A `SandhogError` from it ends the session: it could not be kept."""

_ADAPTER: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


def parse_event(fields: Any) -> Event:
    """The event behind a decoded transcript line; fields that it does not know are passed over.

    Raises:
        pydantic.ValidationError: The type is unknown or a field does not fit.
    """
    # Also by what stands in events: limits, for one, take no unknown field from a person.
    return _ADAPTER.validate_python(fields, extra="ignore")
