"""The loop of a session without a model: posted calls → **caller loop** → plan → step → answers.

It is the model's loop with another source of replies: what runs, in which order and how often is decided by the same
parts. No conversation is kept: it is the caller's.
"""

import asyncio
from dataclasses import dataclass, field

from coordinator.cluster.seat import Seat
from coordinator.ending import end
from coordinator.errors import LostSession, NoBox, RedisLost
from coordinator.service.posted import MARK, Caller, PostedStep
from coordinator.session.history import settle_ids
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.plan import plan
from coordinator.session.spend import reached
from coordinator.session.step_events import ModelReplied, ReplyTaken, StepStarted


@dataclass
class CallerLoop(SessionLoop):
    """Runs what is posted, a step at a time."""

    caller: Caller = field(default_factory=Caller)

    async def run(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        """Return how it ended; every call that was posted is answered by then."""
        self.clock.start()
        if self.caller.last is not None and self.caller.last.is_restored:
            self.caller.last.done.set()
        ending: Ending | None = None
        try:
            ending = await self._until_ended(seat, cancelled)
        finally:
            # One that is broken off goes on elsewhere, or its transcript says how it ended.
            self.caller.close(is_lost=ending is None or ending.is_lost)
        return ending

    async def _until_ended(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        try:
            while not cancelled.is_set():
                ending = await self._next(seat, cancelled)
                if ending is not None:
                    return ending
        except NoBox as exc:
            return Ending("failed", f"{exc.kind}: {exc}")
        except LostSession as exc:
            return Ending("failed", f"taken over: {exc}", is_lost=True)
        except RedisLost as exc:
            return Ending("failed", f"redis: {exc}") if not cancelled.is_set() else Ending("cancelled", "cancelled")
        return Ending("cancelled", "cancelled")

    async def _next(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending | None:
        caller = self.caller
        caller.changed.clear()
        step = caller.last
        if step is not None and not step.done.is_set():
            await self._answer(step, seat, cancelled)
            step.done.set()
            return None
        if caller.farewell is not None:
            return Ending("completed", "done", caller.farewell)
        limit = reached(self.limits.now, self.spend, self.clock.elapsed_s, 0)
        if limit is not None:
            return Ending("stopped", limit.reason)
        most = self.limits.now.time_s
        left_s = None if most is None else max(most - self.clock.elapsed_s, 0.0)
        await _any(caller.changed, cancelled, self.limits.changed, within_s=left_s)
        self.limits.changed.clear()
        return None

    async def _answer(self, step: PostedStep, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> None:
        """Run a step's calls; the sink takes their answers."""
        self.spend.steps += 1
        step.number = self.spend.steps
        step.ids = settle_ids(step.calls, step.number)
        self.emit(StepStarted(step=step.number))
        self.emit(
            ModelReplied(
                step=step.number,
                text="",
                calls=step.calls,
                finish_reason="tool_calls",
                raw={MARK: {"name": step.name, "digest": step.digest}},
            )
        )
        self.emit(ReplyTaken(call_ids=step.ids))
        await self.sync()
        calls = plan(step.calls, step.ids, self.registry)
        ended, stop = asyncio.Event(), asyncio.Event()
        watching = (
            asyncio.create_task(self._stop_in_time(cancelled, ended)),
            asyncio.create_task(_set_when_any(stop, ended, step.cancelled)),
        )
        try:
            if all(call.refusal is not None for call in calls):
                self.spend.calls += len(self.steps.refuse(step.number, calls))
                return
            try:
                place = await self.seated(seat, stop)
            except NoBox as exc:
                self.steps.refuse(step.number, calls, f"there is no box ({exc})")
                raise
            if place is None:
                is_cancelled = cancelled.is_set() or step.cancelled.is_set()
                why = "it was cancelled" if is_cancelled else "the session's time was over"
                self.steps.refuse(step.number, calls, f"{why} before it could")
                return
            self.spend.calls += len(await self.steps.run(step.number, self._within_limit(calls), place, stop))
        finally:
            await end(*watching)


async def _set_when_any(stop: asyncio.Event, *events: asyncio.Event) -> None:
    await _any(*events)
    stop.set()


async def _any(*events: asyncio.Event, within_s: float | None = None) -> None:
    """Return when one of the events is set, or the time is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*waiting)
