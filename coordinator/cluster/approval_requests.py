"""Requests for approval in Redis: approvals → **approval_requests** ← `sandhog approve`, API, page.

Every operation may be repeated; none waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from worker.contract import keys
from worker.contract.approvals import (
    ANSWER_APPROVAL,
    ASK_APPROVAL,
    CLOSE_APPROVAL,
    KEPT_S,
    ApprovalAnswer,
    ApprovalRequest,
    Taken,
    is_within,
)


@dataclass(frozen=True)
class Asked:
    """A request that stands."""

    left_s: float
    """Time until its deadline."""
    answer: ApprovalAnswer | None
    """Given already; None while it waits."""


@dataclass(frozen=True)
class Standing:
    """A request that waits for an answer, and since when."""

    request: ApprovalRequest
    asked_s: float
    """Seconds since 1970, by Redis' clock."""
    deadline_s: float
    """Likewise."""


class Requests:
    """The approvals that are asked for and answered on one Redis."""

    def __init__(self, client: Redis) -> None:
        self._redis = client
        self._ask = client.register_script(ASK_APPROVAL)
        self._answer = client.register_script(ANSWER_APPROVAL)
        self._close = client.register_script(CLOSE_APPROVAL)

    async def ask(self, request: ApprovalRequest, within_s: float) -> Asked:
        """Let a request stand until its deadline; one that stands for this very call goes on with its time."""
        left_ms, answer = await self._ask(
            keys=[keys.approval(request.session, request.name), keys.APPROVALS],
            args=[
                request.digest,
                request.model_dump_json(),
                round(within_s * 1000),
                KEPT_S * 1000,
                _member(request.session, request.name),
            ],
        )
        return Asked(int(left_ms) / 1000, _answer_in(answer))

    async def answer_of(self, session: str, name: str) -> ApprovalAnswer | None:
        """Return the answer that counts; None while there is none."""
        found = await self._redis.hget(keys.approval(session, name), "answer")
        return _answer_in(found)

    async def answer(
        self, session: str, name: str, answer: ApprovalAnswer, *, is_final: bool = False
    ) -> tuple[Taken, ApprovalAnswer | None]:
        """Give an answer; return what became of it, and the one that counts.

        Args:
            session: The session that asks.
            name: The request's name, such as `3.0`.
            answer: Counts if it is the first.
            is_final: The deadline does not stop it: it is the asker's own.
        """
        verdict, held = await self._answer(
            keys=[keys.approval(session, name), keys.APPROVALS],
            args=[answer.model_dump_json(), _member(session, name), "1" if is_final else "0"],
        )
        counting = _answer_in(held)
        taken = Taken(_text(verdict))
        if taken is Taken.ANSWERED and counting is not None and counting.answer_id == answer.answer_id:
            # It was given before, and only the word of that was lost.
            taken = Taken.TAKEN
        return taken, counting

    async def close(self, session: str, name: str) -> None:
        """Say that the answer is in the transcript."""
        await self._close(keys=[keys.approval(session, name)], args=[KEPT_S * 1000])

    async def waiting(self, session: str | None = None) -> Sequence[ApprovalRequest]:
        """Return the requests that wait for an answer, the next deadline first.

        Args:
            session: Of this one and the sub-agents below it; None for all.
        """
        names = [(asker, name) for asker, name in await self.names() if session is None or is_within(asker, session)]
        return [one.request for one in await self.standing(names)]

    async def names(self) -> list[tuple[str, str]]:
        """Return session and name of each request that waits for an answer, the next deadline first."""
        now = int((await self._redis.time())[0]) * 1000
        members = await self._redis.zrangebyscore(keys.APPROVALS, now, "+inf")
        return [(owner, name) for owner, _, name in (_text(member).rpartition(":") for member in members)]

    async def standing(self, names: Iterable[tuple[str, str]]) -> list[Standing]:
        """Return the requests of these sessions and names; one that has gone meanwhile is left out."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner, name in names:
                pipe.hmget(keys.approval(owner, name), ["request", "asked", "deadline"])
            found = await pipe.execute()
        return [
            # One that an earlier release asked says no time.
            Standing(ApprovalRequest.model_validate_json(request), int(asked or deadline) / 1000, int(deadline) / 1000)
            for request, asked, deadline in found
            if request is not None
        ]


def _member(session: str, name: str) -> str:
    return f"{session}:{name}"


def _answer_in(value: bytes | str | None) -> ApprovalAnswer | None:
    return ApprovalAnswer.model_validate_json(value) if value else None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
