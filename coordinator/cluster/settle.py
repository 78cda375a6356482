"""Gets every sent call exactly one outcome: dispatch → **settle** → budget.

The usual way is the reply stream. When a reply stays away, nothing is guessed: a call is fenced first, so that it
never starts later; a fenced call certainly did not run and may be sent again; a call that had started is asked for
at its node by `join`, which starts nothing; and only what even the node cannot tell is *may have run*.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.outcomes import BY_A_PERSON, cancelled_outcome, did_not_run, unknown, when_cancelled
from coordinator.cluster.patience import patiently
from coordinator.cluster.store import Store
from coordinator.cluster.watch import Watch
from coordinator.ending import one_of
from worker.contract import keys
from worker.contract.orders import CallKey, CallOrder, CallOutcome, Fate
from worker.contract.replies import Reply

TICK_S = 0.5
UNCLAIMED_S = 2.0
"""A call that could have started this long ago and has no claim was lost on its way."""
LAST_UNCLAIMED_S = 20.0
"""The same for the last attempt: a node that is slow, or only just has its Redis back, is no lost message."""
GRACE_S = 30.0
"""Added to a call's own limit before the coordinator asks what became of it."""
JOIN_S = 20.0
"""How long a node may take to answer a join of a call that should have ended."""
CANCEL_S = 5.0
"""How long a cancelled call may take to report what it had printed."""
CANCEL_AGAIN_S = 1.0
"""How often a cancelled call is ended anew: a node that is just starting hears nothing."""
CANCEL_LIMIT_S = 10.0
"""How long a cancelled call is waited for in all, also while Redis is away."""
MAX_ATTEMPTS = 2
WITHOUT_OWNER = "the session's coordinator was gone for a while"


@dataclass
class Sent:
    """A call on its way; the order is replaced when it is sent again."""

    order: CallOrder
    timeout_s: float
    future: "asyncio.Future[Reply]"
    run_id: str
    """The life of Redis right before dispatch."""
    startable_at: float
    """Monotonic time from which a free lane could have taken it; infinity behind an unfinished link of its chain."""
    joins: int = 0
    joined: "asyncio.Future[Reply] | None" = None
    """The answer of the last join that was sent."""
    asked_of: str = ""
    """The life of the node that this join went to; "" when it is uncertain that it arrived."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a person cancels this call, and no other one."""
    never_begins: bool = False
    """It was cancelled before a node had begun it: none goes on with what stands behind it in its chain."""


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
        cancels_alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `cancels_alone` a cancelled call ends by itself; without, no other call of its session starts."""
        self._store = store
        self._cancels = store.fence if cancels_alone else store.cancel
        self._reader = reader
        self._dispatcher = dispatcher
        self._watch = watch
        self._clock = clock

    def expect(self, order: CallOrder, timeout_s: float, *, run_id: str, startable: bool = True) -> Sent:
        """Return the handle of a call that is about to be sent, in this life of Redis or a later one."""
        startable_at = self._clock() if startable else float("inf")
        future = self._reader.expect(str(order.key))
        return Sent(order, timeout_s, future, run_id, startable_at)

    def now(self) -> float:
        """Return the settler's own monotonic time, in seconds."""
        return self._clock()

    def forget(self, sent: Sent) -> None:
        """Wait no more for a call."""
        self._reader.forget(str(sent.order.key))
        self._reader.forget(_join_id(sent))

    async def settle(self, sent: Sent, cancelled: asyncio.Event) -> CallOutcome:
        """Return the call's one outcome.

        Raises:
            MustResend: it certainly did not run.
        """
        stop = asyncio.create_task(one_of(cancelled, sent.stopped))
        refused_since: float | None = None
        try:
            while True:
                if not sent.future.done():
                    await _wait_first(TICK_S, sent.future, stop)
                if stop.done() and not sent.future.done():
                    return await self._cancel(sent, cancelled)
                try:
                    outcome = await self._look_after(sent, stop)
                    refused_since = None
                except RedisError as exc:
                    # Nothing can be known now; the call goes on, or waits, as everything does.
                    outcome, refused_since = None, refused_since or self._clock()
                    if self._clock() - refused_since > keys.OUTAGE_S:
                        return unknown(sent.order, f"Redis cannot be asked: {exc}")
                    await _wait_first(TICK_S, stop)
                if outcome is None and stop.done():
                    return await self._cancel(sent, cancelled)
                if outcome is not None:
                    return outcome
                if self._watch.away_s > keys.OUTAGE_S:
                    return unknown(sent.order, "Redis stayed away")
        finally:
            stop.cancel()
            self.forget(sent)

    async def recover(
        self,
        order: CallOrder,
        timeout_s: float,
        *,
        run_id: str,
        has_begun: bool,
        cancelled: asyncio.Event,
        stopped: asyncio.Event,
    ) -> CallOutcome:
        """Return what became of a call that an earlier owner of its session sent, or was about to; starts nothing.

        Args:
            order: The call under its first key, for the node that it was sent to.
            timeout_s: Its tool's limit.
            run_id: The life of Redis in which it would have been claimed.
            has_begun: It may have been sent.
            cancelled: Ends the wait.
            stopped: Ends the call, if it runs, and with it the wait: a person wants it no more.

        Raises:
            RedisLost: Redis stayed away.
        """
        attempts = [order]
        while len(attempts) < MAX_ATTEMPTS:
            attempts.append(resend_order(attempts[-1], order.incarnation))
        fence = partial(self._store.fence, [one.key for one in attempts])
        fenced = await patiently(fence, cancelled)
        started = [one for one, is_fenced in zip(attempts, fenced, strict=True) if not is_fenced]
        if not started and (not has_begun or await patiently(self._store.run_id, cancelled) == run_id):
            if stopped.is_set():
                return when_cancelled(order.key, None, is_alone=True, never_begins=True)
            return did_not_run([order], WITHOUT_OWNER)[0]
        view = await patiently(partial(self._store.node, order.node), cancelled)
        if view is None and not self._watch.is_quiet:
            return unknown(order, f"{WITHOUT_OWNER}, and its node is gone")
        self._watch.follow(order.node, order.incarnation)
        # Without a claim that is certain, each attempt is asked for; only one of them can have started.
        outcome = unknown(order, WITHOUT_OWNER)
        for one in reversed(started or attempts):
            sent = self.expect(one, timeout_s, run_id=run_id)
            sent.stopped = stopped
            outcome = await self._joined(sent, cancelled)
            if outcome.fate is Fate.RAN:
                break
        return outcome

    async def _joined(self, sent: Sent, cancelled: asyncio.Event) -> CallOutcome:
        stop = asyncio.create_task(one_of(cancelled, sent.stopped))
        try:
            outcome = await self._join(sent, WITHOUT_OWNER, stop)
            if outcome is None and not cancelled.is_set():
                # Not `_cancel`: its fence, which is ours, would be taken for a proof that nothing ran.
                return when_cancelled(sent.order.key, await self._within_limit(self._last_words(sent)), is_alone=True)
        finally:
            stop.cancel()
            self.forget(sent)
        return outcome or when_cancelled(sent.order.key, None, is_alone=False)

    async def _look_after(self, sent: Sent, stop: "asyncio.Future[Any]") -> CallOutcome | None:
        """Return the outcome of a call that needs no more waiting; None to go on waiting."""
        if sent.future.done():
            return await self._from_reply(sent, sent.future.result(), stop)
        if not self._watch.is_redis_answering:
            return None
        order = sent.order
        waited = self._clock() - sent.startable_at
        health = self._watch.health(order.node)
        unclaimed_s = UNCLAIMED_S if order.key.attempt < MAX_ATTEMPTS else LAST_UNCLAIMED_S
        if health.incarnation not in (None, order.incarnation):
            return await self._fence_or_join(sent, "its node was restarted", stop)
        if health.is_lost:
            return await self._fence_or_join(sent, "its node is gone", stop)
        if waited > sent.timeout_s + GRACE_S:
            return await self._fence_or_join(sent, "its deadline passed", stop)
        if waited > unclaimed_s and not await self._store.is_claimed(order.key):
            if not health.is_ending:
                return await self._fence_or_join(sent, "it never reached its node", stop)
            # Its next life, or its having left, says what becomes of the call: until then it could not have begun.
            sent.startable_at = self._clock()
        return None

    async def _from_reply(self, sent: Sent, reply: Reply, stop: "asyncio.Future[Any]") -> CallOutcome | None:
        outcome = _read(reply)
        if outcome is None:
            # Celery's own failure says nothing about whether the body ran.
            why = reply.error or "the node sent an outcome that cannot be read"
            return await self._fence_or_join(sent, f"the queue reported {why}", stop)
        if outcome.fate is Fate.DID_NOT_RUN:
            # True of this delivery; another one of the same message may have run in an earlier life of the node.
            return await self._fence_or_join(sent, outcome.reason, stop)
        return outcome

    async def _fence_or_join(self, sent: Sent, why: str, stop: "asyncio.Future[Any]") -> CallOutcome | None:
        key = sent.order.key
        (is_fenced,) = await self._store.fence([key])
        if is_fenced and await self._store.run_id() == sent.run_id:
            if sent.stopped.is_set():
                # The fence may be the person's: nobody wants it to be sent again.
                sent.never_begins = True
                return cancelled_outcome(key, f"{BY_A_PERSON} before it ran.")
            raise MustResend(why)
        # Claimed; or Redis may have lost the claim, and then "no claim" proves nothing.
        return await self._join(sent, why, stop)

    async def _join(self, sent: Sent, why: str, stop: "asyncio.Future[Any]") -> CallOutcome | None:
        """Return what the node says of a call that was started; None once the session is cancelled.

        A node that is restarted meanwhile is asked anew: it took the question with it.
        """
        order, sent.asked_of = sent.order, ""
        left_s = sent.timeout_s + GRACE_S - (self._clock() - sent.startable_at)
        left_s = max(JOIN_S, left_s if left_s != float("inf") else JOIN_S)
        while left_s > 0:
            health = self._watch.health(order.node)
            if health.is_lost:
                return unknown(order, f"{why}; nobody is left to ask")
            if not sent.asked_of or health.incarnation not in (None, sent.asked_of):
                await self._ask_join(sent, health.incarnation)
            before = self._clock()
            await _wait_first(TICK_S, stop, *[one for one in _answers(sent) if not one.done()])
            outcome = _settled(sent)
            if outcome is not None:
                return outcome
            if stop.done():
                return None
            if sent.joined is not None and sent.joined.done():
                break
            # Time in which Redis is away is nobody's.
            left_s -= self._clock() - before if self._watch.is_redis_answering else 0
            if self._watch.away_s > keys.OUTAGE_S:
                break
        return unknown(order, why)

    async def _ask_join(self, sent: Sent, incarnation: str | None) -> None:
        """Send a join, and note whom it was sent to."""
        self._reader.forget(_join_id(sent))
        sent.joins += 1
        sent.joined = self._reader.expect(_join_id(sent))
        is_sent = await self._dispatcher.send_join(sent.order, _join_id(sent))
        sent.asked_of = (incarnation or sent.order.incarnation) if is_sent else ""

    async def _cancel(self, sent: Sent, cancelled: asyncio.Event) -> CallOutcome:
        """Return what a call came to that is cancelled: what it says itself, within a bounded time."""
        is_alone = sent.stopped.is_set() and not cancelled.is_set()
        outcome = await self._within_limit(self._cancelled(sent, is_alone=is_alone))
        return when_cancelled(sent.order.key, outcome, is_alone=is_alone, never_begins=sent.never_begins)

    async def _within_limit(self, words: Awaitable[CallOutcome | None]) -> CallOutcome | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_LIMIT_S):
                return await words
        return None

    async def _cancelled(self, sent: Sent, *, is_alone: bool) -> CallOutcome | None:
        # Of a session's cancel, no other call of it starts from now on either: a node must not go on with the chain's
        # next link.
        fence = self._store.fence if is_alone else self._cancels
        while True:
            try:
                (sent.never_begins,) = await fence([sent.order.key])
                break
            except RedisError:
                await asyncio.sleep(TICK_S)
        return None if sent.never_begins else await self._last_words(sent)

    async def _last_words(self, sent: Sent) -> CallOutcome | None:
        """End a call at its node, and return what it came to; None where that is not heard in time."""
        node, until = sent.order.node, self._clock() + CANCEL_S
        while True:
            await self._dispatcher.cancel(node, [sent.order.key])
            life = self._watch.health(node).incarnation
            if life not in (None, sent.asked_of or sent.order.incarnation):
                # The life that the call, or the question for it, was sent to is over: only this one can answer.
                await self._ask_join(sent, life)
            if not (waiting := [one for one in _answers(sent) if not one.done()]):
                return _settled(sent)
            await _wait_first(min(CANCEL_AGAIN_S, max(0.0, until - self._clock())), *waiting)
            outcome = _settled(sent)
            if outcome is not None or self._clock() >= until:
                return outcome


def _join_id(sent: Sent) -> str:
    return f"{sent.order.key}/join/{sent.joins}"


def _answers(sent: Sent) -> "list[asyncio.Future[Reply]]":
    return [sent.future] if sent.joined is None else [sent.future, sent.joined]


def _settled(sent: Sent) -> CallOutcome | None:
    """Return what a started call came to, if any reply that has come says it."""
    for future in _answers(sent):
        outcome = _read(future.result()) if future.done() else None
        # Not "did not run": that is said by a delivery that came too late, of a call that was started before.
        if outcome is not None and outcome.fate is not Fate.DID_NOT_RUN:
            return outcome
    return None


def _read(reply: Reply) -> CallOutcome | None:
    """Return the outcome in a reply; None for a failure of Celery's and for what cannot be read."""
    if not reply.succeeded or reply.result is None:
        return None
    try:
        return CallOutcome.from_text(reply.result)
    except ValueError:
        return None


async def _wait_first(timeout_s: float, *futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def attempts_of(key: CallKey) -> list[CallKey]:
    """Return a call's first key, with those under which it may be sent again."""
    keys_of_it = [key]
    while len(keys_of_it) < MAX_ATTEMPTS:
        keys_of_it.append(keys_of_it[-1].next_attempt())
    return keys_of_it


def resend_order(order: CallOrder, incarnation: str) -> CallOrder:
    """Return the order as its next attempt, for the node's present life."""
    return order.model_copy(update={"key": order.key.next_attempt(), "incarnation": incarnation})
