"""Gets every sent call exactly one outcome: dispatch → **settle** → budget.

The usual way is the reply stream. When a reply stays away, nothing is guessed: a call is fenced first, so that it
never starts later; a fenced call certainly did not run and may be sent again; a call that had started is asked for
at its node by `join`, which starts nothing; and only what even the node cannot tell is *may have run*.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from redis.exceptions import RedisError

from coordinator.collect import ReplyReader
from coordinator.dispatch import Dispatcher
from coordinator.store import Store
from coordinator.watch import Watch
from worker.contract.orders import CallKey, CallOrder, CallOutcome, Fate
from worker.contract.replies import Reply

TICK_S = 0.5
UNCLAIMED_S = 2.0
"""A call that could have started this long ago and has no claim was lost on its way."""
GRACE_S = 30.0
"""Added to a call's own limit before the coordinator asks what became of it."""
JOIN_S = 20.0
"""How long a node may take to answer a join of a call that should have ended."""
CANCEL_S = 5.0
"""How long a cancelled call may take to report what it had printed."""
MOVE_S = 60.0
"""How long a node must have been without a lease before its calls are given up."""
MAX_ATTEMPTS = 2


@dataclass
class Sent:
    """A call on its way; the order is replaced when it is sent again."""

    order: CallOrder
    timeout_s: float
    future: "asyncio.Future[Reply]"
    run_id: str | None
    """The life of Redis at dispatch."""
    startable_at: float
    """Monotonic time from which a free lane could have taken it; infinity behind an unfinished link of its chain."""
    joins: int = 0
    behind: tuple[CallKey, ...] = ()
    """The later links of its chain: its node sends the next one as soon as this call ends, also by a cancel."""


class MustResend(Exception):
    """The call certainly did not run: its attempt is over, another may be sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Settler:
    """Waits for sent calls and finds out about those whose reply stays away."""

    def __init__(
        self,
        *,
        store: Store,
        reader: ReplyReader,
        dispatcher: Dispatcher,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._reader = reader
        self._dispatcher = dispatcher
        self._watch = watch
        self._clock = clock

    def expect(self, order: CallOrder, timeout_s: float, *, startable: bool) -> Sent:
        """Return the handle of a call that is about to be sent."""
        startable_at = self._clock() if startable else float("inf")
        future = self._reader.expect(str(order.key))
        return Sent(order, timeout_s, future, self._watch.run_id, startable_at)

    def now(self) -> float:
        """Return the settler's own monotonic time, in seconds."""
        return self._clock()

    def forget(self, sent: Sent) -> None:
        """Wait no more for a call."""
        self._reader.forget(str(sent.order.key))

    async def settle(self, sent: Sent, cancelled: asyncio.Event) -> CallOutcome:
        """Return the call's one outcome.

        Raises:
            MustResend: it certainly did not run.
        """
        stop = asyncio.create_task(cancelled.wait())
        try:
            while True:
                await _wait_first(TICK_S, sent.future, stop)
                if sent.future.done():
                    return await self._from_reply(sent, sent.future.result())
                try:
                    if stop.done():
                        return await self._cancel(sent)
                    outcome = await self._look_after(sent)
                except RedisError:
                    # Nothing can be known now; the call goes on, or waits, as everything does.
                    await asyncio.sleep(TICK_S)
                    continue
                if outcome is not None:
                    return outcome
        finally:
            stop.cancel()
            self.forget(sent)

    async def _from_reply(self, sent: Sent, reply: Reply) -> CallOutcome:
        if reply.succeeded and reply.result is not None:
            try:
                outcome = CallOutcome.model_validate(reply.result)
            except ValidationError:
                return await self._join(sent, "the node sent an outcome that cannot be read")
            if outcome.fate is Fate.DID_NOT_RUN:
                raise MustResend(outcome.reason)
            return outcome
        # Celery's own failure says nothing about whether the body ran.
        return await self._fence_or_join(sent, f"the queue reported {reply.error}")

    async def _look_after(self, sent: Sent) -> CallOutcome | None:
        """Return the outcome of a call that needs no more waiting; None to go on waiting."""
        if not self._watch.is_redis_answering:
            return None
        order = sent.order
        waited = self._clock() - sent.startable_at
        health = self._watch.health(order.node)
        if health.incarnation not in (None, order.incarnation):
            return await self._fence_or_join(sent, "its node was restarted")
        if health.leaseless_s > MOVE_S:
            return await self._fence_or_join(sent, "its node is gone")
        if waited > sent.timeout_s + GRACE_S:
            return await self._fence_or_join(sent, "its deadline passed")
        if waited > UNCLAIMED_S and not await self._store.is_claimed(order.key):
            return await self._fence_or_join(sent, "it never reached its node")
        return None

    async def _fence_or_join(self, sent: Sent, why: str) -> CallOutcome:
        key = sent.order.key
        (is_fenced,) = await self._store.fence([key])
        if is_fenced and await self._store.run_id() == sent.run_id:
            raise MustResend(why)
        # Claimed; or Redis may have lost the claim, and then "no claim" proves nothing.
        return await self._join(sent, why)

    async def _join(self, sent: Sent, why: str, wait_s: float | None = None) -> CallOutcome:
        order, sent.joins = sent.order, sent.joins + 1
        if wait_s is None:
            left = sent.timeout_s + GRACE_S - (self._clock() - sent.startable_at)
            wait_s = max(JOIN_S, left if left != float("inf") else JOIN_S)
        if self._watch.health(order.node).leaseless_s > MOVE_S:
            return _unknown(order, f"{why}; nobody is left to ask")
        task_id = f"{order.key}/join/{sent.joins}"
        future = self._reader.expect(task_id)
        try:
            await self._dispatcher.send_join(order, task_id)
            await _wait_first(wait_s, future, sent.future)
        finally:
            self._reader.forget(task_id)
        for reply in [one.result() for one in (sent.future, future) if one.done()]:
            if reply.succeeded and reply.result is not None:
                outcome = CallOutcome.model_validate(reply.result)
                return outcome if outcome.fate is not Fate.DID_NOT_RUN else _unknown(order, why)
        return _unknown(order, why)

    async def _cancel(self, sent: Sent) -> CallOutcome:
        key = sent.order.key
        is_fenced, *_ = await self._store.fence([key, *sent.behind])
        if is_fenced:
            return cancelled_outcome(key, "The session was cancelled before this call ran.")
        await self._dispatcher.cancel(sent.order.node, [key])
        await _wait_first(CANCEL_S, sent.future)
        if sent.future.done():
            reply = sent.future.result()
            if reply.succeeded and reply.result is not None:
                return CallOutcome.model_validate(reply.result)
        return cancelled_outcome(key, "The session was cancelled while this call ran; it may have run in part.")


async def _wait_first(timeout_s: float, *futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def cancelled_outcome(key: CallKey, reason: str) -> CallOutcome:
    """Return the outcome of a call that was cancelled and whose own words are not to be had."""
    return CallOutcome(
        key=key,
        fate=Fate.RAN,
        reason=reason,
        result={"status": "error", "text": "", "error_code": "CANCELLED", "error_message": reason},
    )


def _unknown(order: CallOrder, why: str) -> CallOutcome:
    return CallOutcome(key=order.key, fate=Fate.UNKNOWN, reason=f"The call may have run: {why}.")


def resend_order(order: CallOrder, incarnation: str) -> CallOrder:
    """Return the order as its next attempt, for the node's present life."""
    return order.model_copy(update={"key": order.key.next_attempt(), "incarnation": incarnation})


def did_not_run(orders: Sequence[CallOrder], reason: str) -> list[CallOutcome]:
    """Return the outcomes of calls that never ran and will not be sent again."""
    return [
        CallOutcome(
            key=order.key,
            fate=Fate.DID_NOT_RUN,
            reason=f"The call did not run: {reason}. It is safe to ask for it again.",
        )
        for order in orders
    ]
