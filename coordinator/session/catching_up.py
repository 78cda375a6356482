"""What an earlier owner of a session left unanswered: rebuild → **catching_up** → history, loop.

Nothing is run again, and nothing is begun but what waited for a human's yes. A finished answer is collected from the
node; a call that never ran says so, behind a fence; and only what nobody can tell is *may have run*.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from coordinator.cluster.parts import Cluster
from coordinator.cluster.patience import patiently
from coordinator.cluster.seat import Seat
from coordinator.cluster.settle import attempts_of
from coordinator.errors import RedisLost, TranscriptError
from coordinator.session.approvals import Lasting
from coordinator.session.budget import Answered, answered, refused
from coordinator.session.plan import PlannedCall, plan
from coordinator.session.reading import SessionReading, read_session
from coordinator.session.rebuild import OpenStep, Rebuilt, rebuild
from coordinator.session.step import StepRunner, left
from tools.base import ErrorCode, ToolResult
from tools.permission import repeatable
from tools.registry import Registry
from worker.contract import keys
from worker.contract.approvals import ApprovalAnswer
from worker.contract.orders import CallKey, call_digest

log = logging.getLogger(__name__)

BROKEN_OFF = "the session was broken off before it could"
LOST_HERE = "the session was broken off while it ran"
FRESH_BOX = (
    "The session was interrupted and goes on now in a fresh sandbox on the same workspace. Kept: all files below "
    "/workspace, and the spilled output in /spill. Lost: running processes and background commands, installed packages "
    "and every other change outside of /workspace, /tmp, and the working directory, which is /workspace again."
)
FORKED = (
    "This conversation goes on here in a fork: in a fresh sandbox, on a copy of the workspace as it was. Kept: all "
    "files below /workspace, and the spilled output in /spill. Files must be read again before they are changed. Lost: "
    "running processes and background commands, installed packages and every other change outside of /workspace, /tmp, "
    "and the working directory, which is /workspace again."
)
GO_ON = "The session goes on. Continue with the task."
PROVEN_S = keys.CLAIM_TTL_S - keys.OUTAGE_S
"""So long after a call was begun a claim of it would stand, also where two machines' clocks differ by some minutes."""


@dataclass(frozen=True)
class Continued:
    """A session that another owner had before."""

    reading: SessionReading
    rebuilt: Rebuilt
    generation: int
    """Ours, from Redis and above all segments."""
    by: str
    """Who goes on, for the transcript."""
    message: str = ""
    """What a person says to it; "" for nothing."""
    is_ending: bool = False
    """It was cancelled while nobody ran it, and goes on only to say how it ended."""

    def is_fresh(self, seat: Seat) -> bool:
        """Whether the box is another one than the session had, as far as can be told here."""
        placed = self.rebuilt.placed
        return placed is not None and (self.rebuilt.ended is not None or placed.node != seat.node.node)

    def words(self, seat: Seat | None) -> str:
        """Return what is said to the model before it is asked again; "" for nothing."""
        note = FRESH_BOX if seat is not None and self.is_fresh(seat) else ""
        note = FORKED if self.rebuilt.is_new_fork else note
        said = self.message
        if not said and self.rebuilt.history.is_answered:
            said = GO_ON
        return f"[{note}]\n\n{said}".strip() if note else said


def learn(lasting: Lasting, rebuilt: Rebuilt, registry: Registry, seat: Seat, *, strict: bool) -> None:
    """Remember what a human allowed for the rest of the session."""
    for call in plan(rebuilt.lasting, [raw.id or "" for raw in rebuilt.lasting], registry, strict=strict):
        if call.refusal is None:
            commands = repeatable(call.name, call.arguments, seat.terms)
            lasting.add(call_digest(call.name, call.arguments), commands)


@dataclass(frozen=True)
class OpenAnswers:
    """Finds the answers of a step that an earlier owner began."""

    cluster: Cluster
    steps: StepRunner
    registry: Registry
    rebuilt: Rebuilt
    strict: bool
    """The model was given the strict rendering of the tools' schemas."""

    def open(self, opened: OpenStep) -> None:
        """Let calls of the step be cancelled from now on, while it is found out what became of them."""
        calls = plan(opened.calls, opened.ids, self.registry, strict=self.strict)
        self.steps.reopen(opened.step, [calls[at] for at in opened.missing], opened.begun)

    async def find(self, opened: OpenStep, seat: Seat, cancelled: asyncio.Event) -> list[str]:
        """Return one answer for each call of the step, in order; those that were missing are recorded.

        Raises:
            RedisLost: nothing can be found out now; every call has its answer all the same.
            LostSession: another coordinator has the session now.
        """
        calls = plan(opened.calls, opened.ids, self.registry, strict=self.strict)
        missing = [calls[at] for at in opened.missing]
        # Whoever is asked about a call is asked on, with the time that is left; what comes behind it waits as well.
        waiting = [call for call in missing if opened.asked and call.index not in opened.begun and call.refusal is None]
        try:
            await self._give_lanes(seat.session, opened, seat, cancelled)
            await self._end_children(seat, cancelled)
            # All at once: one that still runs must not hold up what is known of the others.
            known = await asyncio.gather(
                *[self._answer(call, opened, seat, cancelled) for call in missing if call not in waiting]
            )
        except RedisLost as exc:
            self.close(opened, str(exc))
            raise
        for answer in known:
            self._record(opened, answer)
        if waiting:
            answers = await self.steps.run(opened.step, waiting, seat, cancelled)
            opened.answers.update(zip((call.index for call in waiting), answers, strict=True))
        return opened.in_order()

    def close(self, opened: OpenStep, why: str) -> list[str]:
        """Return one answer for each call of the step, in order, by what the transcript alone says of those missing.

        Args:
            opened: The step.
            why: Why nothing more is found out.
        """
        calls = plan(opened.calls, opened.ids, self.registry, strict=self.strict)
        for call in [calls[at] for at in opened.missing]:
            is_refused, has_begun = call.refusal is not None, call.index in opened.begun
            self._record(opened, refused(call) if is_refused else left(call, why, has_begun=has_begun))
        return opened.in_order()

    async def end_questions(self, session: str, cancelled: asyncio.Event) -> None:
        """Let nobody be asked any more for sub-agents of the earlier owner: they ended with it.

        Raises:
            RedisLost: nothing can be found out now.
        """
        requests = self.cluster.requests
        for one in await patiently(partial(requests.waiting, session), cancelled):
            if one.session != session:
                gone = ApprovalAnswer(answer_id=f"gone {one.session}", decision="deny", by="nobody", note=LOST_HERE)
                await patiently(partial(requests.answer, one.session, one.name, gone, is_final=True), cancelled)

    def _record(self, opened: OpenStep, answer: Answered) -> None:
        self.steps.record(opened.step, answer, {})
        opened.answers[answer.call.index] = answer.content

    async def _answer(self, call: PlannedCall, opened: OpenStep, seat: Seat, cancelled: asyncio.Event) -> Answered:
        if call.refusal is not None:
            return refused(call)
        has_begun = call.index in opened.begun
        if call.stays_here:
            return _here(call, has_begun)
        order = self.steps.order(opened.step, call, seat)
        placed = opened.sent_to.get(call.index, self.rebuilt.placed)
        key = CallKey(session=seat.session, generation=opened.generation, step=opened.step, index=call.index)
        self.steps.keys.extend(attempts_of(key))
        order = order.model_copy(update={"key": key, "node": placed.node if placed else order.node})
        # Nothing is left of a claim that has expired: that there is none proves nothing then.
        age_s = self.steps.wall_clock() - opened.begun_at.get(call.index, 0.0)
        outcome = await self.cluster.executor.recover(
            order,
            call.timeout_s,
            run_id=placed.run_id if placed and age_s < PROVEN_S else "",
            has_begun=has_begun,
            cancelled=cancelled,
            stopped=self.steps.open_calls.stop_of(call.index),
        )
        return answered(call, outcome, 0.0)

    async def _end_children(self, seat: Seat, cancelled: asyncio.Event) -> None:
        """End what sub-agents of the earlier owner still run, and theirs: nobody waits for it, nor wants it now."""
        children = dict(self.rebuilt.open_children)
        while children:
            child, transcript = children.popitem()
            child_dir = Path(seat.box.session_dir) / PurePosixPath(transcript).parent
            try:
                rebuilt = rebuild((await asyncio.to_thread(read_session, child_dir)).entries)
            except TranscriptError as exc:
                log.info("a sub-agent is not looked at", extra={"session_id": child, "error": str(exc)})
                continue
            children.update(rebuilt.open_children)
            opened = rebuilt.open_step
            if opened is not None:
                attempts = _attempts(child, opened, opened.missing)
                self.steps.keys.extend(attempts)
                await self.cluster.executor.give_up(seat.node.node, attempts, cancelled)
                await self._give_lanes(child, opened, seat, cancelled)

    async def _give_lanes(self, session: str, opened: OpenStep, seat: Seat, cancelled: asyncio.Event) -> None:
        """Give the lanes back that the earlier owner's calls held: a chain's is its first call's, answered or not."""
        holders = [str(attempt) for attempt in _attempts(session, opened, range(len(opened.calls)))]
        placed = next(iter(opened.sent_to.values()), self.rebuilt.placed)
        node = placed.node if placed else seat.node.node
        await patiently(partial(self.cluster.store.give_lanes, node, holders), cancelled)


def _attempts(session: str, opened: OpenStep, at: Iterable[int]) -> list[CallKey]:
    """Return all keys that these calls of an earlier owner's step may have been sent under."""
    step = [CallKey(session=session, generation=opened.generation, step=opened.step, index=index) for index in at]
    return [attempt for key in step for attempt in attempts_of(key)]


def _here(call: PlannedCall, has_begun: bool) -> Answered:
    """Return the answer of a call that ran in the coordinator that is gone."""
    if has_begun:
        words = f"{call.name} may have run: {LOST_HERE}."
        return Answered(call, ToolResult.failure(ErrorCode.OUTCOME_UNKNOWN, words))
    return Answered(call, ToolResult.failure(ErrorCode.CANCELLED, f"{call.name} did not run: {BROKEN_OFF}."))
