"""Answers what a session asks, from another terminal: `sandhog approve`."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from coordinator.cluster.approval_requests import Requests
from coordinator.commands.acting import actor, keep_action
from coordinator.commands.elsewhere import everywhere
from coordinator.commands.marking import marked_lines
from coordinator.errors import ConfigError
from coordinator.visible import visible_line
from worker.contract.approvals import ApprovalAnswer, ApprovalRequest, Taken, named_below

WIDTH = 120


@dataclass(frozen=True)
class Answer:
    """What somebody typed."""

    is_allowed: bool
    note: str = ""
    is_lasting: bool = False


def waiting(redis_url: str | None, state_dir: Path, session: str | None) -> list[ApprovalRequest]:
    """Return what waits for an answer, of one session with its sub-agents or all.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> Sequence[ApprovalRequest]:
        return await Requests(client).waiting(session)

    return [request for found in asyncio.run(everywhere(redis_url, state_dir, ask)) for request in found]


def give(redis_url: str | None, state_dir: Path, session: str, name: str, answer: Answer) -> str:
    """Give an answer to one request; return what became of it, in words.

    Args:
        redis_url: The Redis; None for all of this machine.
        state_dir: The volume.
        session: The session that asks, or a sub-agent's id.
        name: The request's name, such as `3.0`; or `1-2-0.3.0`, that of the session's sub-agent 1-2-0.
        answer: What is said.

    Raises:
        ConfigError: nobody asks that, or it was answered before or too late.
        TranscriptError: the audit log takes no line; nothing was answered.
    """
    given = ApprovalAnswer(
        answer_id=uuid.uuid4().hex,
        decision="allow" if answer.is_allowed else "deny",
        by=f"{actor()} by sandhog approve",
        note=answer.note,
        is_lasting=answer.is_lasting,
    )

    lasting = ", for the session" if answer.is_lasting else ""
    keep_action(state_dir, given.decision, session=session, detail=f"call {name}{lasting}")

    async def tell(client: Redis) -> tuple[Taken, ApprovalAnswer | None]:
        return await Requests(client).answer(*named_below(session, name), given)

    for taken, counting in asyncio.run(everywhere(redis_url, state_dir, tell)):
        match taken:
            case Taken.TAKEN:
                return f"{session} {name}: {given.decision}"
            case Taken.ANSWERED if counting is not None:
                words = visible_line(counting.by, WIDTH)
                raise ConfigError(f"{session} {name} was answered before: {counting.decision} by {words}.")
            case Taken.LATE:
                raise ConfigError(f"{session} {name}: its time is over; it was denied.")
    raise ConfigError(f"No session here asks {session} {name}. `sandhog approve` lists what waits.")


def shown(request: ApprovalRequest) -> list[str]:
    """Return a request in lines, whole."""
    head = f"{request.session} {request.name}: {visible_line(request.tool, 30)} wants a yes: "
    return [head + visible_line(request.reason, 4 * WIDTH), *marked_lines(request.text, request.part, WIDTH)]
