"""The model loop of one session: ask → plan → step → history, until the model is done or something stops it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.cluster.seat import Seat
from coordinator.ending import end, first
from coordinator.endpoint.model import ModelClient
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.written_calls import WrittenCall, written_calls
from coordinator.errors import LostSession, ModelError, NoBox, RedisLost
from coordinator.session.asking import Asker
from coordinator.session.breakers import NO_TOOLS, ShownTools
from coordinator.session.context import Context
from coordinator.session.event_fields import SessionStatus
from coordinator.session.events import EventSink
from coordinator.session.history import History, settle_ids
from coordinator.session.limits import Limits, LiveLimits
from coordinator.session.plan import PlannedCall, plan
from coordinator.session.session_events import LimitsChanged, Notice
from coordinator.session.spend import GRACE_S, Spend, WallClock, reached
from coordinator.session.step import StepRunner
from coordinator.session.step_events import CallsWritten
from coordinator.session.written import STOP_REASON, WRITTEN_REPLIES, correction, written_in
from tools.base import ErrorCode, ToolFailure
from tools.registry import Registry

TICK_S = 0.25
"""How exactly the session's time is kept."""

CUT_REPLY = (
    "Your last reply was cut off by the length limit and none of its calls was run. "
    "Go on with a shorter reply, or split the work into smaller calls."
)

MOVED = (
    "[The machine that the sandbox was on is gone. The session goes on in a fresh sandbox on another one, on the same "
    "workspace. Kept: all files below /workspace, and the spilled output in /spill. Lost: running processes and "
    "background commands, installed packages and every other change outside of /workspace, /tmp, and the working "
    "directory, which is /workspace again.]"
)

SUM_UP = (
    "This session ends here ({reason}). No tool can be called any more. Sum up for the user: what is done, what is "
    "left open, and how to go on."
)


@dataclass(frozen=True)
class Ending:
    """How a session's loop ended."""

    status: SessionStatus
    stop_reason: str
    text: str = ""
    is_lost: bool = False
    """Another coordinator has the session now: its box and its place are not this one's to end."""


@dataclass
class SessionLoop:
    """Runs one session. The box is made ready beside the first request and awaited before the first call."""

    model: ModelClient
    registry: Registry
    shown: ShownTools
    steps: StepRunner
    emit: EventSink
    sync: Callable[[], Awaitable[None]]
    """Makes everything emitted so far durable."""
    limits: LiveLimits
    spend: Spend
    clock: WallClock
    history: History
    reseat: Callable[[Seat, asyncio.Event], Awaitable[Seat]] | None = None
    """Returns the seat to be used in place of one that the session had; another one where its node is lost."""
    last_seat: Seat | None = None
    """The seat of the last step."""
    waits_for_box: bool = False
    """The model is asked only once the box stands: set-up that fails costs no request."""
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""
    context: Context = field(default_factory=Context)
    """The model's window."""
    written_replies: int = 0
    """Replies in a row that held calls as text."""

    def __post_init__(self) -> None:
        self.asker = Asker(
            self.model, self.history, self.spend, self.context, self.emit, self.sync, parameters=self.parameters
        )
        self._told_limits: Limits = self.limits.now

    async def run(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        """Return how it ended; every call that was asked for is answered in the history by then.

        Args:
            seat: Yields the session's place and box; its failure ends the session.
            cancelled: Ends the session as soon as every call has its answer.
        """
        self.clock.start()
        self.steps.repeats.begin_anew()
        stop = asyncio.Event()
        watching = asyncio.create_task(self._stop_in_time(cancelled, stop))
        try:
            if self.waits_for_box:
                await first(seat, stop)
            while not cancelled.is_set():
                ending = await self._step(seat, cancelled, stop)
                if ending is not None:
                    return ending
        except ModelError as exc:
            self.asker.tell_failed(exc, None)
            return Ending("failed", f"model: {exc}")
        except NoBox as exc:
            return Ending("failed", f"{exc.kind}: {exc}")
        except LostSession as exc:
            return Ending("failed", f"taken over: {exc}", is_lost=True)
        except RedisLost as exc:
            return Ending("failed", f"redis: {exc}") if not cancelled.is_set() else Ending("cancelled", "cancelled")
        finally:
            await end(watching)
        return Ending("cancelled", "cancelled")

    async def _stop_in_time(self, cancelled: asyncio.Event, stop: asyncio.Event) -> None:
        """Keep `stop` set while the session is cancelled or its time is over."""
        while True:
            most = self.limits.now.time_s
            left_s = None if most is None else most - self.clock.elapsed_s
            if cancelled.is_set() or (left_s is not None and left_s <= 0):
                stop.set()
            else:
                stop.clear()
            waiting = [asyncio.create_task(self.limits.changed.wait())]
            if not cancelled.is_set():
                waiting.append(asyncio.create_task(cancelled.wait()))
            # Time that stands still is looked at again now and then.
            timeout = max(left_s, TICK_S) if left_s is not None and not stop.is_set() else None
            try:
                await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(*waiting)
            self.limits.changed.clear()

    async def _step(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event, stop: asyncio.Event) -> Ending | None:
        self.tell_limits()
        tools = await self.shown.schemas(self.last_seat.node.node if self.last_seat else _node(seat))
        next_tokens = self.context.tokens(self.history, tools)
        limit = reached(self.limits.now, self.spend, self.clock.elapsed_s, next_tokens)
        if limit is not None:
            return await self._sum_up(limit.reason, SUM_UP, cancelled, may_ask=limit.may_sum_up)
        if not tools and self.registry.names():
            return await self._sum_up("no_tools: every tool is switched off", NO_TOOLS, cancelled)
        if stop.is_set():
            # The limit that had stopped it was lifted just now.
            await asyncio.sleep(0)
            return None
        ending = await self._turn(tools, seat, cancelled, stop)
        why = self.steps.repeats.stop_reason
        return await self._sum_up(why, SUM_UP, cancelled) if ending is None and why else ending

    def tell_limits(self) -> None:
        """Keep limits that were changed: a later owner goes on with them."""
        if self.limits.now != self._told_limits:
            self._told_limits = self.limits.now
            self.emit(LimitsChanged(limits=self._told_limits))

    async def _sum_up(self, reason: str, words: str, cancelled: asyncio.Event, *, may_ask: bool = True) -> Ending:
        """Let the model say its last words, without tools, where there is something to sum up."""
        if not may_ask or not any(message["role"] == "assistant" for message in self.history.messages):
            return Ending("stopped", reason)
        self.history.add_user(words.format(reason=reason), "sandhog")
        most = self.limits.now.time_s
        within_s = None if most is None else max(most - self.clock.elapsed_s, 0.0) + GRACE_S
        try:
            async with asyncio.timeout(within_s):
                reply = await self.asker.ask([], cancelled)
        except ModelError as exc:
            self.asker.tell_failed(exc, None)
            return Ending("stopped", reason)
        except TimeoutError:
            return Ending("stopped", reason)
        if reply is None:
            return Ending("cancelled", "cancelled")
        ids = settle_ids(reply.calls, self.spend.steps)
        self.history.add_reply(reply, ids)
        if reply.calls:
            calls = plan(reply.calls, ids, self.registry, strict=self.model.settings.strict_tools)
            self._answered(self.steps.refuse(self.spend.steps, calls, f"the session has ended ({reason})"))
        # A call in the text sums nothing up.
        text = "" if written_calls(reply.text, self.registry.names()) else reply.text
        return Ending("stopped", reason, text or reply.refusal or "")

    async def _turn(
        self,
        tools: list[dict[str, Any]],
        seat: "asyncio.Task[Seat]",
        cancelled: asyncio.Event,
        stop: asyncio.Event,
    ) -> Ending | None:
        reply = await self.asker.ask(tools, stop)
        if reply is None:
            return Ending("cancelled", "cancelled") if cancelled.is_set() else None
        match reply.finish_reason:
            case "length":
                return self._cut_off(reply)
            case "content_filter":
                return Ending("stopped", "content_filter: the endpoint withheld the reply", reply.text)
        written = written_in(reply, tools)
        if written:
            return self._written(reply, written)
        self.written_replies = 0
        if not reply.calls:
            self.history.add_reply(reply)
            if reply.refusal and not reply.text:
                return Ending("stopped", "refusal: the model declined", reply.refusal)
            return Ending("completed", "done", reply.text) if reply.text else Ending("failed", "empty reply")
        ids = settle_ids(reply.calls, self.spend.steps)
        self.history.add_reply(reply, ids)
        calls = plan(reply.calls, ids, self.registry, strict=self.model.settings.strict_tools)
        await self._run(self._within_limit(self.steps.repeats.checked(calls)), seat, cancelled, stop)
        return None

    async def _run(
        self,
        calls: Sequence[PlannedCall],
        seat: "asyncio.Task[Seat]",
        cancelled: asyncio.Event,
        stop: asyncio.Event,
    ) -> None:
        """Answer all calls of a reply."""
        if all(call.refusal is not None for call in calls):
            self._answered(self.steps.refuse(self.spend.steps, calls))
            return
        before = self.last_seat
        try:
            place = await self.seated(seat, stop)
        except NoBox as exc:
            self._answered(self.steps.refuse(self.spend.steps, calls, f"there is no box ({exc})"))
            raise
        if place is None:
            # Every call is answered also when the session ends before its box stood.
            why = "the session was cancelled" if cancelled.is_set() else "the session's time was over"
            self._answered(self.steps.refuse(self.spend.steps, calls, f"{why} before it could"))
            return
        self._answered(await self.steps.run(self.spend.steps, calls, place, stop))
        if before is not None and place.node.node != before.node.node:
            self.history.add_user(MOVED, "sandhog")

    async def seated(self, seat: "asyncio.Task[Seat]", stop: asyncio.Event) -> Seat | None:
        """Return where the next step's calls run; None when `stop` was set before that was known.

        Raises:
            NoBox: nowhere.
        """
        place = self.last_seat or await first(seat, stop)
        if place is not None and self.reseat is not None:
            place = await self.reseat(place, stop)
        self.last_seat = place
        return place

    def _within_limit(self, calls: Sequence[PlannedCall]) -> tuple[PlannedCall, ...]:
        """Return the calls, with refusals at those that are more than the session may still make."""
        most = self.limits.now.calls
        if most is None:
            return tuple(calls)
        room = max(most - self.spend.calls, 0)
        refusal = ToolFailure(
            ErrorCode.LIMIT_REACHED, f"Not run: the session may make {most} calls, and has made them."
        )
        return (*calls[:room], *(replace(call, refusal=refusal) for call in calls[room:]))

    def _answered(self, answers: list[str]) -> None:
        self.spend.calls += len(answers)
        self.history.add_answers(answers)

    def _cut_off(self, reply: ModelReply) -> Ending | None:
        """Keep the text of a reply that was cut by its length, run none of its calls, and let the model go on."""
        if not reply.text and not reply.calls:
            return Ending("stopped", "length: the reply was cut before it said anything", "")
        text_only = ModelReply(reply.text or "(cut off)", (), reply.finish_reason, reply.usage, None, reply.raw)
        self.history.add_reply(text_only)
        self.history.add_user(CUT_REPLY, "sandhog")
        self.emit(Notice(level="warning", text="The reply was cut by its length limit; none of its calls was run."))
        return None

    def _written(self, reply: ModelReply, written: tuple[WrittenCall, ...]) -> Ending | None:
        """Tell the model that a call in its text is none, and end the session where it was told before."""
        self.written_replies += 1
        is_last = self.written_replies >= WRITTEN_REPLIES
        self.history.add_reply(reply)
        names = tuple(dict.fromkeys(call.name for call in written if call.name))
        self.emit(CallsWritten(step=self.spend.steps, names=names, form=written[0].form, is_last=is_last))
        if is_last:
            return Ending("stopped", STOP_REASON)
        self.history.add_user(correction(written), "sandhog")
        return None


def _node(seat: "asyncio.Task[Seat]") -> str | None:
    """Return the session's node, None while it has none."""
    if not seat.done() or seat.cancelled() or seat.exception() is not None:
        return None
    return seat.result().node.node
