"""Events of a session as a whole: its begin and end, its owner, its box, its sub-agents."""

from typing import Literal

from pydantic import Field

from coordinator.endpoint.reply import Usage
from coordinator.session.event_fields import EventFields, SessionStatus
from coordinator.session.limits import Limits

TAKEOVER = "takeover"
"""Who goes on, where a coordinator does by itself."""


class SessionStarted(EventFields):
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
    allow_hosts: list[str] = Field(default_factory=list)
    """Hosts that the box may reach."""
    generation: int = 1
    """Counts the owners of the session; each writes its own transcript segment."""
    rules: str = ""
    """The user's own policy as it travels with each call; "" if there is none."""
    forked_from: str = ""
    """The session that this one is a fork of; what follows up to `SessionForked` is that one's."""


class SessionForked(EventFields):
    """Up to here the transcript is that of another session; from here on it is the fork's own."""

    type: Literal["session_forked"] = "session_forked"
    session_id: str
    """The session that it was forked from."""
    at_step: int
    """Its last step that the fork has."""


class SystemWritten(EventFields):
    """The system message is another one from now on."""

    type: Literal["system_written"] = "system_written"
    system: str
    """All of it."""


class LimitsChanged(EventFields):
    """What the session may use was changed while it ran."""

    type: Literal["limits_changed"] = "limits_changed"
    limits: Limits
    """All that it may use from the next step on."""


class SessionResumed(EventFields):
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


class SessionPlaced(EventFields):
    """The session has a place on a node, and its box stands."""

    type: Literal["session_placed"] = "session_placed"
    node: str
    """The node's name."""
    incarnation: str
    """That life of it."""
    host: str = ""
    """Tells its machine from others; "" where it is not known."""
    run_id: str
    """The life of Redis in which its calls are claimed."""
    bounds: dict[str, str] = Field(default_factory=dict)
    """How each writable place of the box is bounded, and to what: `{"/tmp": "tmpfs, 512 MiB"}`."""
    image_id: str = ""
    """Digest of the image that the box runs on."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of what the node runs calls with, as `NodeLife` has them; empty where it does not say."""


class BoxReplaced(EventFields):
    """The box was lost and the next call gets a fresh one on the same workspace."""

    type: Literal["box_replaced"] = "box_replaced"
    reason: str
    """What ended the old box."""


class TurnEnded(EventFields):
    """The model has answered; the session waits for a person's next message."""

    type: Literal["turn_ended"] = "turn_ended"
    status: SessionStatus
    """How the turn ended."""
    stop_reason: str
    """Why, in one word or a short sentence."""
    text: str
    """The model's answer; "" when there is none."""


class ChildStarted(EventFields):
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


class ChildEnded(EventFields):
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


class Notice(EventFields):
    """Something the reader should know that is none of the others."""

    type: Literal["notice"] = "notice"
    level: Literal["info", "warning", "error"] = "info"
    """How much it matters."""
    text: str
    """One or a few lines for a person."""


class SessionEnding(EventFields):
    """It is decided how the session ends; its workspace is collected, and checked, before it has ended."""

    type: Literal["session_ending"] = "session_ending"
    status: SessionStatus
    """How it will have ended."""
    stop_reason: str
    """Why, in one word or a short sentence."""


class SessionEnded(EventFields):
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
