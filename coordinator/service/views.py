"""A session as the API shows it: facts → **views** → HTTP, client, webhook."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from coordinator.cluster.turns import Turn
from coordinator.endpoint.reply import Usage
from coordinator.service.entries import Entry
from coordinator.service.facts import Status
from coordinator.session.limits import Limits

EXAMPLE: JsonDict = {
    "session_id": "20300131-120000-1a2b3c4d",
    "status": "completed",
    "principal": "team-a",
    "labels": {"ticket": "1234"},
    "loop": "model",
    "created_at": "2030-01-31T12:00:00Z",
    "started_at": "2030-01-31T12:00:01.250Z",
    "ended_at": "2030-01-31T12:04:10.007Z",
    "position": None,
    "queue": None,
    "model": "gpt-5.5",
    "image": "sandhog-box:latest",
    "policy": "boxed",
    "workspace": "project",
    "workspace_mode": "copy",
    "limits": {
        "steps": 40,
        "calls": None,
        "tokens_in": None,
        "tokens_out": None,
        "cost_usd": 2.5,
        "time_s": 1800.0,
    },
    "step": 7,
    "calls": 9,
    "usage": {
        "prompt_tokens": 41250,
        "completion_tokens": 2310,
        "total_tokens": 43560,
        "cached_tokens": 30720,
        "is_estimated": False,
    },
    "cost_usd": 0.21,
    "text": "The test passes: the date was compared as text.",
    "stop_reason": "done",
    "last_error": "The endpoint answered 503; it was asked again.",
    "approvals": 0,
    "has_patch": True,
    "forked_from": None,
}


class QueueView(BaseModel):
    """Where a session stands that waits."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    line: Literal["server", "cluster"]
    """server: for its turn in this process, among your own; cluster: for a place on a node, among all that wait."""
    place_in_line: int
    """From 1."""
    ahead: int
    """How many come before it."""
    is_at_quota: bool = False
    """You have as many places as you may: it waits for one of your own sessions, and stands among these."""

    @classmethod
    def of_turn(cls, turn: Turn) -> Self:
        """Return a place in the cluster's line."""
        return cls(line="cluster", place_in_line=turn.position, ahead=turn.position - 1, is_at_quota=turn.is_at_ceiling)


class SessionView(BaseModel):
    """One session."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", use_attribute_docstrings=True, json_schema_extra={"examples": [EXAMPLE]}
    )

    session_id: str
    status: Status
    """queued, running, waiting (for a human's yes) or idle (for your next message); in the end completed, stopped,
    failed or cancelled."""
    principal: str
    labels: dict[str, str]
    loop: str
    """`none` where the calls come from outside."""
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    position: int | None = None
    """Place among your waiting sessions, from 1; null unless it waits in this process."""
    queue: QueueView | None = None
    """Where it stands while it waits for its turn or for a place on a node; null while it waits for neither."""
    forked_from: str | None = None
    """The session that it is a fork of."""
    model: str
    image: str
    policy: str
    workspace: str | None
    """As it was asked for; null for an empty one."""
    workspace_mode: str
    """bind or copy; "" before it began."""
    limits: Limits | None
    step: int
    """Replies of the model so far, the one that is being made included."""
    calls: int
    """Tool calls answered."""
    usage: Usage
    cost_usd: float | None
    """null while it runs, and where the model's prices are not known."""
    text: str
    """The final answer; while it runs, what the model said last."""
    stop_reason: str
    """Why it ended; "" while it has not."""
    last_error: str | None
    """The last thing that went wrong, which need not have ended it."""
    approvals: int
    """Calls that wait for a human's yes."""
    has_patch: bool


def view_of(entry: Entry, position: int | None = None, turn: Turn | None = None) -> SessionView:
    """Return what is shown of a session.

    Args:
        entry: The session.
        position: Its place in this process's line.
        turn: Its place in the cluster's line.
    """
    record, facts = entry.record, entry.facts
    wanted = record.wanted
    queue = QueueView.of_turn(turn) if turn is not None else None
    if position is not None:
        queue = QueueView(line="server", place_in_line=position, ahead=position - 1)
    return SessionView(
        session_id=record.session_id,
        status=facts.status,
        principal=record.principal,
        labels=record.labels,
        loop=record.loop,
        created_at=record.created_at,
        started_at=_moment(facts.started_at),
        ended_at=_moment(facts.ended_at),
        position=position,
        queue=queue,
        forked_from=record.forked_from or facts.forked_from,
        model=facts.model,
        image=facts.image,
        policy=facts.policy,
        workspace=wanted.workspace if wanted is not None else None,
        workspace_mode=facts.workspace_mode,
        limits=facts.limits,
        step=facts.step,
        calls=facts.calls,
        usage=facts.usage,
        cost_usd=facts.cost_usd,
        text=facts.text,
        stop_reason=facts.stop_reason,
        last_error=facts.last_error,
        approvals=len(facts.waiting),
        has_patch=facts.patch_path is not None,
    )


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
