"""Who says yes to a call that the policy asks about: plan → **approvals** → dispatch.

A call is asked about before it is sent, so that no lane waits for a person, the time does not count against the call's,
and the person sees the results of the calls before it. The request stands in Redis with a deadline; the first answer
counts, from the terminal or from anywhere through Redis. A yes becomes a grant for this session, this tool and these
very arguments.
"""

import asyncio
import json
import shlex
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pydantic import JsonValue
from redis.exceptions import RedisError

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.patience import patiently
from coordinator.ending import end
from coordinator.endpoint.fragments import mend
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked
from coordinator.session.events import EventSink
from coordinator.session.plan import PlannedCall
from tools.permission import Terms, repeatable
from tools.verdict import Verdict
from worker.contract.approvals import ApprovalAnswer, ApprovalRequest
from worker.contract.orders import call_digest

POLL_S = 0.2
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Decided:
    """A human's answer, or that of the rule that stands for one."""

    is_allowed: bool
    by: str
    """Who or what decided, for the transcript."""
    note: str = ""
    """Said to the model with a no."""
    is_lasting: bool = False
    """What was asked about may run again in this session without being asked about."""


class Approver(Protocol):
    """Answers for a human."""

    waits: bool
    """Whether a human is waited for; False for a rule that answers at once."""

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Return the decision; None if it can only come through Redis. Cancelled when it came from there first."""


class Never:
    """Nobody is there: every question is answered with no."""

    waits = False

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Deny."""
        note = "nobody is there to approve it; work with what is allowed, or say what you would need."
        return Decided(False, by="--approve never", note=note)


class Always:
    """Everything that is asked about is allowed, on the user's word."""

    waits = False

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Allow."""
        return Decided(True, by="--approve always")


class Elsewhere:
    """Nobody is asked here: the answer comes through Redis, or the deadline."""

    waits = True

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Leave it to others."""
        return None


class OneAtATime:
    """Puts the questions of a session and of its sub-agents to one human, one after the other."""

    def __init__(self, approver: Approver) -> None:
        self.waits = approver.waits
        self._approver = approver
        self._turn = asyncio.Lock()

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Ask when it is the question's turn; while it waits it can be answered from elsewhere."""
        async with self._turn:
            return await self._approver.ask(request)


@dataclass
class Lasting:
    """What a human allowed for the rest of a session: exactly what was shown, no pattern of it."""

    digests: set[str] = field(default_factory=set)
    """Calls with these very arguments."""
    commands: set[tuple[str, ...]] = field(default_factory=set)
    """Simple commands with these very words, in whatever list or pipeline they come first."""

    def covers(self, digest: str, commands: frozenset[tuple[str, ...]] | None) -> bool:
        """Return whether a call needs no new question."""
        return digest in self.digests or (commands is not None and commands <= self.commands)

    def add(self, digest: str, commands: frozenset[tuple[str, ...]] | None) -> None:
        """Remember what was allowed: its commands, or this very call where they cannot be told."""
        if commands is None:
            self.digests.add(digest)
        else:
            self.commands |= commands


@dataclass
class Approvals:
    """Asks about one session's calls."""

    requests: Requests
    approver: Approver
    emit: EventSink
    deadline_s: float = DEADLINE_S
    lasting: Lasting = field(default_factory=Lasting)
    agent: str = ""
    """The sub-agent whose calls they are, by what it is to do; "" for the session itself."""
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex

    async def decide(
        self, session: str, step: int, call: PlannedCall, verdict: Verdict, terms: Terms, cancelled: asyncio.Event
    ) -> Decided:
        """Return whether a call may run that the policy asks about.

        Raises:
            RedisLost: the question cannot be asked: Redis stayed away.
        """
        commands = repeatable(call.name, call.arguments, terms)
        digest = call_digest(call.name, call.arguments)
        if self.lasting.covers(digest, commands):
            return Decided(True, by="a rule of this session")
        request = ApprovalRequest(
            session=session,
            step=step,
            index=call.index,
            tool=call.name,
            digest=digest,
            # A server's own arguments may hold half a surrogate pair.
            text=mend(full_text(call)),
            reason=verdict.reason,
            part=verdict.part,
            lasting=None if commands is None else sorted(list(words) for words in commands),
            agent=self.agent,
        )
        self.emit(self._asked(request))
        decided = await self._answer(request, cancelled)
        self.emit(_answered(request, decided))
        if decided.is_allowed and decided.is_lasting:
            self.lasting.add(digest, commands)
        return decided

    async def _answer(self, request: ApprovalRequest, cancelled: asyncio.Event) -> Decided:
        if not self.approver.waits:
            decided = await self.approver.ask(request)
            assert decided is not None
            return decided
        asked = await patiently(partial(self.requests.ask, request, self.deadline_s), cancelled)
        decided = _decided(asked.answer) if asked.answer else await self._first(request, asked.left_s, cancelled)
        await patiently(partial(self.requests.close, request.session, request.name), cancelled)
        return decided

    async def _first(self, request: ApprovalRequest, left_s: float, cancelled: asyncio.Event) -> Decided:
        """Return the first answer of all; what comes from here is given through Redis, so that only one counts."""
        here = asyncio.create_task(self._here(request), name=f"ask {request.name}")
        there = asyncio.create_task(self._there(request))
        stop = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait({here, there, stop}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if there.done():
                return _decided(there.result())
            if here.done():
                own = here.result()
            elif stop.done():
                own = Decided(False, by="nobody answered", note="the session was ended")
            else:
                own = Decided(False, by="the deadline", note=f"nobody answered within {self.deadline_s:.0f} s")
            answer = self._as_answer(own)
            _, counting = await patiently(
                partial(self.requests.answer, request.session, request.name, answer, is_final=True), cancelled
            )
            # Gone: a Redis that lost it. Who answers here has decided all the same.
            return _decided(counting or answer)
        finally:
            await end(here, there, stop)

    async def _here(self, request: ApprovalRequest) -> Decided:
        decided = await self.approver.ask(request)
        if decided is None:
            await asyncio.Event().wait()
        assert decided is not None
        return decided

    async def _there(self, request: ApprovalRequest) -> ApprovalAnswer:
        while True:
            try:
                answer = await self.requests.answer_of(request.session, request.name)
            except RedisError:
                answer = None
            if answer is not None:
                return answer
            await asyncio.sleep(POLL_S)

    def _as_answer(self, decided: Decided) -> ApprovalAnswer:
        return ApprovalAnswer(
            answer_id=self.new_id(),
            decision="allow" if decided.is_allowed else "deny",
            by=decided.by,
            note=decided.note,
            is_lasting=decided.is_lasting,
        )

    def _asked(self, request: ApprovalRequest) -> ApprovalAsked:
        return ApprovalAsked(
            step=request.step,
            index=request.index,
            tool=request.tool,
            summary=request.text,
            reason=request.reason,
            part=request.part,
            lasting=None if request.lasting is None else tuple(shlex.join(words) for words in request.lasting),
            within_s=self.deadline_s if self.approver.waits else None,
        )


def full_text(call: PlannedCall) -> str:
    """Return what a call would do, whole, for a human to judge: its command, else each argument on lines of its own."""
    command = call.arguments.get("command")
    if isinstance(command, str):
        return command
    return "\n".join(line for name, value in call.arguments.items() for line in _flat(name, value))


def _flat(name: str, value: JsonValue) -> Iterator[str]:
    """Return an argument in lines: the first begins with its name, all others with blanks."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from _flat(f"{name}.{key}", inner)
        case list():
            for place, inner in enumerate(value):
                yield from _flat(f"{name}[{place}]", inner)
        case str():
            yield f"{name}: " + value.replace("\n", "\n    ")
        case _:
            yield f"{name}: {json.dumps(value)}"


def _decided(answer: ApprovalAnswer) -> Decided:
    return Decided(answer.decision == "allow", answer.by, answer.note, answer.is_lasting)


def _answered(request: ApprovalRequest, decided: Decided) -> ApprovalAnswered:
    return ApprovalAnswered(
        step=request.step,
        index=request.index,
        tool=request.tool,
        summary=request.text,
        reason=request.reason,
        decision="allow" if decided.is_allowed else "deny",
        note=decided.by,
        message=decided.note,
        is_lasting=decided.is_lasting,
    )
