"""What a session asks of a human, and the answer: HTTP → **approving** → Redis → approvals."""

import shlex
import uuid
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from coordinator.cluster.approval_requests import Requests
from coordinator.service.refusals import Code, Refused
from worker.contract.approvals import ApprovalAnswer, ApprovalRequest, Taken, name_below, named_below, split_asker

NAME = r"^([0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}\.){0,10}[0-9]{1,9}\.[0-9]{1,6}$"
"""What names a call in a session's tree."""
EXAMPLE: JsonDict = {
    "name": "1-2-0.3.0",
    "agent": "1-2-0",
    "about": "Tidy up the build",
    "tool": "Bash",
    "text": "rm -r build",
    "reason": "rm is not known to only read",
    "part": [0, 11],
    "lasting": ["rm -r build"],
}


class ApprovalView(BaseModel):
    """One call that waits for a yes, of a session or of a sub-agent below it."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", use_attribute_docstrings=True, json_schema_extra={"examples": [EXAMPLE]}
    )

    name: str
    """`3.0` is the first call of step 3; `1-2-0.3.0` that of sub-agent 1-2-0."""
    agent: str = ""
    """The sub-agent that asks, as its directory below `children` is called; "" for the session itself."""
    about: str = ""
    """What the sub-agent is to do, in a few words."""
    tool: str
    text: str
    """What would run, whole and as the model wrote it: show it so that it can only be text."""
    reason: str
    """Why it is asked."""
    part: tuple[int, int] | None
    """Where in the text, in characters, stands what decided."""
    lasting: list[str] | None
    """The commands that a yes for the whole session would allow; null: only the very same call."""


@dataclass(frozen=True)
class Given:
    """An answer as it was given."""

    decision: Literal["allow", "deny"]
    note: str
    is_lasting: bool
    by: str


async def waiting(requests: Requests, session_id: str) -> list[ApprovalView]:
    """Return what a session and its sub-agents ask now, the next deadline first.

    Raises:
        RedisError: Redis does not answer.
    """
    return [view_of(request) for request in await requests.waiting(session_id)]


def view_of(request: ApprovalRequest) -> ApprovalView:
    """Return a request as it is shown."""
    session, agent = split_asker(request.session)
    return ApprovalView(
        name=name_below(session, request),
        agent=agent,
        about=request.agent,
        tool=request.tool,
        text=request.text,
        reason=request.reason,
        part=request.part,
        lasting=None if request.lasting is None else [shlex.join(words) for words in request.lasting],
    )


async def answer(requests: Requests, session_id: str, name: str, given: Given) -> ApprovalAnswer:
    """Return the answer that counts, which is this one.

    Args:
        requests: What is asked.
        session_id: The session that asks, itself or by a sub-agent.
        name: As `waiting` calls it.
        given: The answer.

    Raises:
        Refused: another one came first, it is too late, or nobody asks that.
        RedisError: Redis does not answer.
    """
    own = ApprovalAnswer(
        answer_id=uuid.uuid4().hex,
        decision=given.decision,
        by=given.by,
        note=given.note,
        is_lasting=given.is_lasting and given.decision == "allow",
    )
    taken, counting = await requests.answer(*named_below(session_id, name), own)
    match taken:
        case Taken.TAKEN:
            return own
        case Taken.ANSWERED:
            words = f"{name} was answered before: {counting.decision} by {counting.by}." if counting else f"{name}."
            raise Refused(Code.CONFLICT, words)
        case Taken.LATE:
            raise Refused(Code.CONFLICT, f"The time of {name} is over; it was denied.")
        case Taken.GONE:
            raise Refused(
                Code.NOT_FOUND, f"The session does not ask about {name}.", "GET …/approvals lists what it asks."
            )
