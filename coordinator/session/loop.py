"""The model loop of one session: ask → plan → step → history, until the model is done or something stops it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from coordinator.cluster.seat import Seat
from coordinator.ending import end
from coordinator.endpoint.model import ModelClient
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.endpoint.reply import ModelReply, Usage
from coordinator.endpoint.written_calls import WrittenCall
from coordinator.errors import LostSession, ModelError, NoBox, RedisLost
from coordinator.session.breakers import NO_TOOLS, ShownTools
from coordinator.session.events import (
    CallsWritten,
    EventSink,
    ModelReplied,
    Notice,
    RequestFailed,
    SessionStatus,
    StepStarted,
    TextDelta,
)
from coordinator.session.history import History, settle_ids
from coordinator.session.limits import LiveLimits
from coordinator.session.plan import plan
from coordinator.session.spend import Spend, WallClock, reached
from coordinator.session.step import StepRunner
from coordinator.session.written import STOP_REASON, WRITTEN_REPLIES, correction, written_in
from tools.registry import Registry

_T = TypeVar("_T")

CUT_REPLY = (
    "Your last reply was cut off by the length limit and none of its calls was run. "
    "Go on with a shorter reply, or split the work into smaller calls."
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
    sync: Callable[[], None]
    """Makes everything emitted so far durable."""
    limits: LiveLimits
    spend: Spend
    clock: WallClock
    history: History
    waits_for_box: bool = False
    """The model is asked only once the box stands: set-up that fails costs no request."""
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""
    written_replies: int = 0
    """Replies in a row that held calls as text."""

    async def run(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        """Return how it ended; every call that was asked for is answered in the history by then.

        Args:
            seat: Yields the session's place and box; its failure ends the session.
            cancelled: Ends the session as soon as every call has its answer.
        """
        self.clock.start()
        try:
            if self.waits_for_box:
                await first(seat, cancelled)
            while not cancelled.is_set():
                at_limit = reached(self.limits.now, self.spend, self.clock.elapsed_s, 0)
                if at_limit is not None:
                    return Ending("stopped", at_limit.reason)
                ending = await self._step(seat, cancelled)
                if ending is not None:
                    return ending
        except ModelError as exc:
            self.emit(self._request_failed(exc, None))
            return Ending("failed", f"model: {exc}")
        except NoBox as exc:
            return Ending("failed", f"box: {exc}")
        except LostSession as exc:
            return Ending("failed", f"taken over: {exc}", is_lost=True)
        except RedisLost as exc:
            return Ending("failed", f"redis: {exc}") if not cancelled.is_set() else Ending("cancelled", "cancelled")
        return Ending("cancelled", "cancelled")

    async def _step(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending | None:
        tools = await self.shown.schemas(_node(seat))
        if tools or not self.registry.names():
            return await self._turn(tools, seat, cancelled)
        self.history.add_user(NO_TOOLS)
        ending = await self._turn(tools, seat, cancelled)
        if ending is None or ending.status == "completed":
            return Ending("stopped", "no_tools: every tool is switched off", ending.text if ending else "")
        return ending

    async def _turn(
        self, tools: list[dict[str, Any]], seat: "asyncio.Task[Seat]", cancelled: asyncio.Event
    ) -> Ending | None:
        reply = await self._ask(tools, cancelled)
        if reply is None:
            return Ending("cancelled", "cancelled")
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
        if any(call.refusal is None for call in calls):
            try:
                place = await first(seat, cancelled)
            except NoBox as exc:
                self._answered(self.steps.refuse(self.spend.steps, calls, f"there is no box ({exc})"))
                raise
            if place is None:
                # Every call is answered also when the session ends before its box stood.
                self._answered(self.steps.refuse(self.spend.steps, calls, "the session was cancelled before it could"))
                return Ending("cancelled", "cancelled")
            self._answered(await self.steps.run(self.spend.steps, calls, place, cancelled))
        else:
            self._answered(self.steps.refuse(self.spend.steps, calls))
        return None

    def _answered(self, answers: list[str]) -> None:
        self.spend.calls += len(answers)
        self.history.add_answers(answers)

    async def _ask(self, tools: list[dict[str, Any]], cancelled: asyncio.Event) -> ModelReply | None:
        """Return the model's next reply, asked for once more if it was empty; None when cancelled."""
        self.spend.steps += 1
        step = self.spend.steps
        self.emit(StepStarted(step=step))
        self.sync()
        reply: ModelReply | None = None
        for _ in range(2):
            asking = asyncio.create_task(
                self.model.ask(
                    self.history.messages,
                    tools,
                    lambda text: self.emit(TextDelta(step=step, text=text)),
                    on_retry=lambda retry: self.emit(self._request_failed(retry.error, retry.wait_s)),
                    on_wait=self._waited,
                    parameters=self.parameters,
                    is_first=step == 1,
                )
            )
            reply = await first(asking, cancelled)
            if reply is None:
                return None
            self.spend.add(reply.usage or Usage())
            self._replied(step, reply)
            if reply.text or reply.calls or reply.refusal or reply.finish_reason == "content_filter":
                return reply
            self.emit(Notice(level="warning", text="The model's reply was empty; it is asked once more."))
        return reply

    def _cut_off(self, reply: ModelReply) -> Ending | None:
        """Keep the text of a reply that was cut by its length, run none of its calls, and let the model go on."""
        if not reply.text and not reply.calls:
            return Ending("stopped", "length: the reply was cut before it said anything", "")
        text_only = ModelReply(reply.text or "(cut off)", (), reply.finish_reason, reply.usage, None, reply.raw)
        self.history.add_reply(text_only)
        self.history.add_user(CUT_REPLY)
        self.emit(Notice(level="warning", text="The reply was cut by its length limit; none of its calls was run."))
        return None

    def _replied(self, step: int, reply: ModelReply) -> None:
        raw: Mapping[str, object] = reply.raw
        self.emit(
            ModelReplied(
                step=step,
                text=reply.text,
                calls=reply.calls,
                finish_reason=reply.finish_reason,
                usage=reply.usage,
                refusal=reply.refusal,
                raw=dict(raw),
            )
        )

    def _written(self, reply: ModelReply, written: tuple[WrittenCall, ...]) -> Ending | None:
        """Tell the model that a call in its text is none, and end the session where it was told before."""
        self.written_replies += 1
        is_last = self.written_replies >= WRITTEN_REPLIES
        self.history.add_reply(reply)
        names = tuple(dict.fromkeys(call.name for call in written if call.name))
        self.emit(CallsWritten(step=self.spend.steps, names=names, form=written[0].form, is_last=is_last))
        if is_last:
            return Ending("stopped", STOP_REASON)
        self.history.add_user(correction(written))
        return None

    def _request_failed(self, error: ModelError, next_try_s: float | None) -> RequestFailed:
        return RequestFailed(
            step=self.spend.steps,
            text=str(error),
            status=error.status,
            code=error.code,
            body=error.body,
            next_try_s=next_try_s,
        )

    def _waited(self, seconds: float) -> None:
        self.emit(Notice(text=f"The request waited {seconds:.0f} s for a place at the endpoint."))


def _node(seat: "asyncio.Task[Seat]") -> str | None:
    """Return the session's node, None while it has none."""
    if not seat.done() or seat.cancelled() or seat.exception() is not None:
        return None
    return seat.result().node.node


async def first(work: "asyncio.Task[_T]", stop: asyncio.Event) -> _T | None:
    """Return the task's result, or None once stopped; the task has ended then, as when the caller is cancelled."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        stopped.cancel()
        if not work.done():
            await end(work)
