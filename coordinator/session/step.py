"""One reply's calls, from plan to answers: plan → **step** (approvals, execute, budget) → history.

Every call of the reply gets exactly one answer, in the model's order, whatever is refused, denied, cancelled or lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from redis.exceptions import RedisError

from coordinator.cluster.execute import Executor, Job
from coordinator.cluster.outcomes import BY_A_PERSON
from coordinator.cluster.patience import patiently
from coordinator.cluster.seat import Above, Seat
from coordinator.cluster.settle import attempts_of
from coordinator.cluster.store import Store
from coordinator.ending import either
from coordinator.errors import LostSession, RedisLost
from coordinator.session.approvals import Approvals
from coordinator.session.bounds import BUDGETS, Budgets
from coordinator.session.budget import Answered, answered, refused, within_step
from coordinator.session.call_events import AnswerShortened, CallFinished, CallStarted
from coordinator.session.event_fields import CutInfo
from coordinator.session.events import EventSink
from coordinator.session.home_tools import HOME_TOOLS, HomeCall, HomeTool, run_here
from coordinator.session.open_calls import OpenCalls
from coordinator.session.partition import Stretch, Travel, batches, stretches
from coordinator.session.plan import PlannedCall
from coordinator.session.reading import is_last_owner
from coordinator.session.repeats import Repeats
from coordinator.session.session_events import BoxReplaced
from tools.base import ErrorCode, ToolResult
from tools.cutting import cut_text
from tools.permission import decide
from tools.read import lines_left
from tools.registry import Registry
from tools.verdict import Decision, Verdict
from worker.contract.orders import CallKey, CallOrder, CallOutcome, call_digest

OnServers = Callable[[str, Seat], Awaitable[None]]
Regain = Callable[[Seat, asyncio.Event], Awaitable[None]]
"""Takes the place of a seat's session again, see `SessionPlace.regain`."""


@dataclass
class StepRunner:
    """Answers the calls of one session's steps, one step at a time."""

    executor: Executor
    store: Store
    approvals: Approvals
    emit: EventSink
    registry: Registry | None = None
    """The session's tools; None means the built-in ones."""
    home_tools: Mapping[str, HomeTool] = field(default_factory=lambda: HOME_TOOLS)
    """What runs here, by the tool's name."""
    keys: list[CallKey] = field(default_factory=list)
    """All keys that were sent, for the clean-up at the session's end."""
    granted: set[str] = field(default_factory=set)
    """Digests for which a grant was left, used up or not."""
    budgets: Budgets = BUDGETS
    on_servers: OnServers | None = None
    """Is told after each step what the tools of the session's MCP servers hash to, by its node."""
    regain: Regain | None = None
    """Is asked before calls run where the session has given its place back; None leaves that to the node."""
    _servers: str = field(default="", init=False)
    repeats: Repeats = field(default_factory=Repeats)
    """What failed before."""
    _begun: set[int] = field(default_factory=set)
    """Calls of the present step that may have been sent."""
    _here: set[int] = field(default_factory=set)
    """Those of them that run in this process."""
    handed_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when another owner goes on with the session: it finds out what became of the calls that are open."""
    running: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while calls run; whoever holds it meanwhile finds the workspace between two steps."""
    open_calls: OpenCalls = field(default_factory=OpenCalls)
    """Calls of the present step that a person may cancel."""
    _seat: Seat | None = field(default=None, init=False)
    """Where the present step runs."""
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    async def run(self, step: int, calls: Sequence[PlannedCall], seat: Seat, cancelled: asyncio.Event) -> list[str]:
        """Return one answer for each call, in order.

        Raises:
            LostSession: another coordinator has the session now.
            RedisLost: nothing more can be found out; every call has its answer all the same.
            CancelledError: as `RedisLost`; where the session is handed on, open calls are left without an answer.
        """
        answers: dict[int, Answered] = {}
        self._begun.clear()
        self._here.clear()
        try:
            async with self.running:
                await self._begin(step, seat, cancelled)
                self._seat = seat
                self.open_calls.begin(step, calls)
                for call in calls:
                    if call.refusal is not None:
                        self.record(step, refused(call), answers)
                # A refused call does not part its neighbours: it takes no part in the step's order.
                for stretch in stretches([call for call in calls if call.refusal is None]):
                    await self._run_stretch(step, stretch, seat, cancelled, answers)
        except (RedisLost, asyncio.CancelledError) as exc:
            self._leave(step, calls, str(exc) or "the session was broken off", answers)
            raise
        in_order = [answers[call.index] for call in calls]
        fitted = within_step(in_order, self.budgets.step_bytes)
        for before, after in zip(in_order, fitted, strict=True):
            if after is not before and after.cut is not None:
                self.emit(AnswerShortened(step=step, index=after.call.index, cut=after.cut, answer=after.content))
                await self._narrow(step, before, after, seat, cancelled)
        if self.on_servers is not None and self._servers:
            await self.on_servers(self._servers, seat)
        return [answer.content for answer in fitted]

    def _leave(self, step: int, calls: Sequence[PlannedCall], why: str, answers: dict[int, Answered]) -> None:
        """Answer what nobody waits for any more, unless the next owner does."""
        for call in calls:
            if call.index not in answers and not self.handed_on.is_set():
                self.record(step, left(call, why, has_begun=call.index in self._begun), answers)

    async def _begin(self, step: int, seat: Seat, cancelled: asyncio.Event) -> None:
        """Make this the session's step; of a sub-agent, also ask whether the sessions above it are still ours.

        Raises:
            LostSession: another coordinator has one of them now.
            RedisLost: that cannot be found out.
        """
        own = Above(seat.session, seat.generation, step)
        is_last = partial(is_last_owner, Path(seat.box.session_dir), seat.box.generation)
        for one in (*(seat.child.above if seat.child else ()), own):
            begin = partial(self.store.begin_step, one.session, one.generation, one.step, is_last)
            if not await patiently(begin, cancelled):
                raise LostSession(f"session {one.session} was taken over by another coordinator")

    def reopen(self, step: int, calls: Sequence[PlannedCall], begun: Collection[int]) -> None:
        """Let calls be cancelled that an earlier owner left without an answer; `begun` are those that may have run."""
        self.open_calls.begin(step, calls)
        self._begun.update(begun)

    async def cancel(self, step: int, index: int | None) -> dict[int, bool]:
        """End one call, or with None all of a step, that a person wants no more; the session goes on.

        Returns:
            Of each that was open whether it may have begun; one that had not never will. Empty where none was open.
        """
        found = self.open_calls.stop(step, index)
        if self._seat is None:
            # Whoever finds out what became of them ends them.
            return {at: at in self._begun for at in found}
        if not found:
            return {}
        keys = [_key(step, at, self._seat) for at in found]
        try:
            fenced = await self.store.fence([one for key in keys for one in attempts_of(key)])
        except (RedisError, OSError):
            # Whoever waits for a call fences it as well, before anything is killed, as soon as Redis answers.
            return dict.fromkeys(found, True)
        attempts = len(fenced) // len(found)
        has_begun = {at: not all(fenced[place * attempts :][:attempts]) for place, at in enumerate(found)}
        # What runs here has no claim.
        return {at: has_begun[at] or at in self._here for at in found}

    async def _narrow(self, step: int, before: Answered, after: Answered, seat: Seat, cancelled: asyncio.Event) -> None:
        """Let lines of a file that the step's budget cut away count as not shown."""
        path = before.result.data.get("path")
        if isinstance(path, str):
            key = _key(step, before.call.index, seat).model_copy(update={"attempt": before.attempt})
            left = lines_left(before.result.text, after.result.text)
            await patiently(partial(self.store.narrow_seen, key, path, left), cancelled)

    def refuse(self, step: int, calls: Sequence[PlannedCall], why: str = "") -> list[str]:
        """Return the answers of calls none of which runs; needs no box.

        Args:
            step: Their step.
            calls: All calls of the reply.
            why: What keeps those from running that could run.
        """
        answers: dict[int, Answered] = {}
        for call in calls:
            self.record(step, refused(call) if call.refusal else left(call, why, has_begun=False), answers)
        return [answers[call.index].content for call in calls]

    async def _run_stretch(
        self, step: int, stretch: Stretch, seat: Seat, cancelled: asyncio.Event, answers: dict[int, Answered]
    ) -> None:
        """Run what may run; the calls before a question to a human run first, so that their results are seen."""
        allowed: list[PlannedCall] = []
        for call in stretch.calls:
            verdict = decide(call.name, call.arguments, seat.terms, self.registry)
            if verdict.decision is Decision.DENY:
                self.record(step, _denied(call, verdict.reason), answers)
                continue
            if verdict.decision is Decision.ASK:
                await self._run_part(step, Stretch(stretch.travel, tuple(allowed)), seat, cancelled, answers)
                allowed = []
                if not await self._approve(step, call, verdict, seat, cancelled, answers):
                    continue
            allowed.append(call)
        await self._run_part(step, Stretch(stretch.travel, tuple(allowed)), seat, cancelled, answers)

    async def _approve(
        self,
        step: int,
        call: PlannedCall,
        verdict: Verdict,
        seat: Seat,
        cancelled: asyncio.Event,
        answers: dict[int, Answered],
    ) -> bool:
        """Ask the human; return whether the call may run, leaving a grant for the worker if so."""
        session, digest = seat.session, call_digest(call.name, call.arguments)
        stop = self.open_calls.stop_of(call.index)
        if cancelled.is_set() or stop.is_set():
            self.record(step, _cancelled(call, stop), answers)
            return False
        async with either(cancelled, stop) as unasked:
            decided = await self.approvals.decide(session, step, call, verdict, seat.terms, unasked)
        if stop.is_set():
            self.record(step, _cancelled(call, stop), answers)
            return False
        if not decided.is_allowed:
            self.record(step, _denied(call, f"{verdict.reason}; {decided.note or 'it was denied'}"), answers)
            return False
        if call.stays_here:
            return True
        await patiently(partial(self.store.grant, session, digest), cancelled)
        self.granted.add(digest)
        return True

    async def _run_part(
        self, step: int, part: Stretch, seat: Seat, cancelled: asyncio.Event, answers: dict[int, Answered]
    ) -> None:
        stops = {call.index: self.open_calls.stop_of(call.index) for call in part.calls}
        for call in part.calls:
            if stops[call.index].is_set():
                self.record(step, _cancelled(call, stops[call.index]), answers)
        calls = [call for call in part.calls if call.index not in answers]
        if not calls:
            return
        if part.travel is Travel.HERE:
            await self._run_here(step, calls, seat, cancelled, answers)
            return
        by_index = {call.index: call for call in calls}
        jobs = [Job(self.order(step, call, seat), call.timeout_s, stops[call.index]) for call in calls]
        self.keys.extend(job.order.key for job in jobs)
        started = self.clock()
        for call in calls:
            self._begun.add(call.index)
            self._start(step, call)

        async def on_outcome(outcome: CallOutcome) -> None:
            call = by_index[outcome.key.index]
            self.keys.append(outcome.key)
            self._servers = outcome.mcp or self._servers
            if outcome.box_note:
                self.emit(BoxReplaced(reason=outcome.box_note))
            self.record(step, answered(call, outcome, (self.clock() - started) * 1000), answers)

        regain = partial(self.regain, seat) if self.regain is not None else None
        await self.executor.run(part.travel, jobs, seat.node, cancelled, on_outcome, self.open_calls.unwanted, regain)

    async def _run_here(
        self,
        step: int,
        calls: Sequence[PlannedCall],
        seat: Seat,
        cancelled: asyncio.Event,
        answers: dict[int, Answered],
    ) -> None:
        """Run calls in this process, safe neighbours at once."""

        async def run(call: PlannedCall) -> None:
            stop = self.open_calls.stop_of(call.index)
            if cancelled.is_set() or stop.is_set():
                self.record(step, _cancelled(call, stop), answers)
                return
            started = self.clock()
            self._begun.add(call.index)
            self._here.add(call.index)
            self._start(step, call)
            async with either(cancelled, stop) as ends:
                result = await run_here(HomeCall(step, call, seat, self.emit, ends), self.home_tools)
            if stop.is_set() and result.error_code is ErrorCode.CANCELLED:
                result = result.model_copy(update={"error_message": f"{BY_A_PERSON}. {result.error_message}"})
            cut = cut_text(result.text, self.budgets.result_bytes)
            result = result.with_text(cut.text).with_arguments(call.arguments)
            info = CutInfo(total_bytes=cut.total_bytes, shown_bytes=cut.shown_bytes) if cut.is_cut else None
            self.record(step, Answered(call, result, (self.clock() - started) * 1000, cut=info), answers)

        for batch in batches(calls):
            await asyncio.gather(*[run(call) for call in batch])

    def order(self, step: int, call: PlannedCall, seat: Seat) -> CallOrder:
        """Return a call's order for the seat's node."""
        return CallOrder(
            key=_key(step, call.index, seat),
            call_id=call.call_id,
            node=seat.node.node,
            incarnation=seat.node.incarnation,
            tool=call.name,
            arguments=call.arguments,
            policy=seat.policy,
            principal=seat.principal,
            attributes=dict(seat.attributes),
            rules=seat.rules_text,
            is_read_only=seat.is_read_only,
            allowed_tools=None if seat.tools is None else sorted(seat.tools),
            result_bytes=self.budgets.result_bytes,
            sent_at=self.wall_clock(),
            box=seat.box,
        )

    def _start(self, step: int, call: PlannedCall) -> None:
        self.emit(
            CallStarted(
                step=step,
                index=call.index,
                call_id=call.call_id,
                tool=call.name,
                summary=call.summary,
                run_id=self.executor.run_id,
            )
        )

    def record(self, step: int, answer: Answered, answers: dict[int, Answered]) -> None:
        """Record a call's one answer."""
        answer = answers[answer.call.index] = self.repeats.noted(step, answer)
        call, result = answer.call, answer.result
        self.open_calls.answered(step, call.index)
        self.emit(
            CallFinished(
                step=step,
                index=call.index,
                call_id=call.call_id,
                tool=call.name,
                summary=call.summary,
                status=result.status,
                error_code=result.error_code,
                time_ms=answer.time_ms,
                cut=answer.cut,
                answer=answer.content,
                attempt=answer.attempt,
                outcome_note=answer.note,
            )
        )


def _denied(call: PlannedCall, reason: str) -> Answered:
    return Answered(call, ToolResult.failure(ErrorCode.PERMISSION_DENIED, f"{call.name} was not run: {reason}"))


def left(call: PlannedCall, why: str, *, has_begun: bool) -> Answered:
    """Return the answer of a call whose outcome nobody waits for any more."""
    if has_begun:
        return Answered(call, ToolResult.failure(ErrorCode.OUTCOME_UNKNOWN, f"{call.name} may have run: {why}."))
    return Answered(call, ToolResult.failure(ErrorCode.CANCELLED, f"{call.name} did not run: {why}."))


def _cancelled(call: PlannedCall, stop: asyncio.Event) -> Answered:
    """Return the answer of a call that was cancelled; `stop` is set where a person did that to this very call."""
    words = f"{BY_A_PERSON} before it ran." if stop.is_set() else f"{call.name} was cancelled before it ran."
    return Answered(call, ToolResult.failure(ErrorCode.CANCELLED, words))


def _key(step: int, index: int, seat: Seat) -> CallKey:
    return CallKey(session=seat.session, generation=seat.generation, step=step, index=index)
