"""Errands: what a session asks of its node beside calls: placement → **errands** → node.

Making a box ready, ending a session, copying its workspace: each may be asked twice. A node is asked for so many at
once as it has threads for; whoever comes behind waits here, in line.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from redis.exceptions import RedisError

from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.lanes import Lanes
from coordinator.cluster.store import ERRAND_TTL_S, Store
from coordinator.cluster.watch import Watch
from coordinator.ending import end
from coordinator.errors import RedisLost
from worker.contract import keys
from worker.contract.orders import (
    CopyOrder,
    CopyOutcome,
    FinishOrder,
    FinishOutcome,
    PrepareOrder,
    PrepareOutcome,
)
from worker.contract.replies import Reply

log = logging.getLogger(__name__)

_Order = TypeVar("_Order", PrepareOrder, FinishOrder, CopyOrder)
_Outcome = TypeVar("_Outcome", PrepareOutcome, FinishOutcome, CopyOutcome)

TICK_S = 0.5
RESEND_S = 10.0
"""An order without an answer is sent again after this time, then three times as long, and so on: a message can be lost
on its way, with the connection on which a node had asked for it. A node that is at it already lets the second one wait.
"""
RESEND_GROWTH = 3.0
BEGIN, FINISH = "begin", "finish"
"""Kinds of errands: neither kind waits behind the other."""


class Errands:
    """Asks nodes, for one coordinator."""

    def __init__(
        self,
        *,
        store: Store,
        reader: ReplyReader,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        resend_s: float = RESEND_S,
    ) -> None:
        self._store = store
        self._reader = reader
        self._watch = watch
        self._clock = clock
        self._resend_s = resend_s
        self._lines = {
            kind: Lanes(partial(store.take_errands, kind), partial(_give, store, kind)) for kind in (BEGIN, FINISH)
        }

    async def ask(
        self,
        send: Callable[[_Order, str], Awaitable[bool]],
        order: _Order,
        name: str,
        wait_s: float,
        away_s: float = keys.OUTAGE_S,
        *,
        kind: str = FINISH,
    ) -> Reply | str:
        """Return the node's reply, or why there is none. All orders may be repeated.

        The order is sent when the node is on few enough errands of its kind; the wait for that does not count.

        A message whose arrival is uncertain is sent again, and so is one that a life of the node took with it, or that
        has had no answer for long. Time in which Redis is away is nobody's, nor is that in which the node is ending,
        unless whoever asks has no patience for an outage either.
        """
        errands = self._lines[kind]
        turn = asyncio.create_task(errands.take(order.node, keys.ERRANDS, [name], asyncio.Event()))
        waiting: dict[str, asyncio.Future[Reply]] = {}
        asked_of, left_s, patience_s, asked_at, renewed_at = "", wait_s, self._resend_s, 0.0, self._clock()
        try:
            while left_s > 0:
                health, began = self._watch.health(order.node), self._clock()
                if health.is_gone:
                    return f"it has been gone for {health.leaseless_s:.0f} s"
                if self._watch.away_s > away_s:
                    return f"Redis has been away for {self._watch.away_s:.0f} s"
                if not await self._has_turn(turn):
                    continue
                is_overdue = bool(asked_of) and began - asked_at > patience_s
                if not asked_of or health.incarnation not in (None, asked_of) or is_overdue:
                    patience_s *= RESEND_GROWTH if is_overdue else 1.0
                    task_id = f"{name}/{len(waiting) + 1}"
                    waiting[task_id] = self._reader.expect(task_id)
                    is_sent = await send(order, task_id)
                    asked_of = (health.incarnation or order.incarnation) if is_sent else ""
                    asked_at = self._clock()
                done, _ = await asyncio.wait(
                    waiting.values(), timeout=min(TICK_S, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return done.pop().result()
                is_nobodys = health.is_ending and away_s >= keys.OUTAGE_S
                left_s -= self._clock() - began if self._watch.is_redis_answering and not is_nobodys else 0.0
                renewed_at = await self._renewed(kind, order.node, name, renewed_at)
            return f"nothing came within {wait_s:.0f} s"
        except RedisLost as exc:
            return str(exc)
        finally:
            for task_id in waiting:
                self._reader.forget(task_id)
            await end(turn)
            await errands.give(order.node, name)

    async def _has_turn(self, turn: asyncio.Task[int]) -> bool:
        if not turn.done():
            await asyncio.wait({turn}, timeout=TICK_S)
        return turn.done() and turn.result() > 0

    async def _renewed(self, kind: str, node: str, name: str, renewed_at: float) -> float:
        """Keep an errand's seat; return when that was done last. One of a coordinator that died ends by itself."""
        if self._clock() - renewed_at < ERRAND_TTL_S / 3:
            return renewed_at
        try:
            await self._store.take_errands(kind, node, keys.ERRANDS, [name])
        except RedisError as exc:
            log.warning("an errand's seat was not renewed", extra={"errand": name, "error": str(exc)})
        return self._clock()


async def _give(store: Store, kind: str, node: str, names: Sequence[str], over: int) -> None:
    # An errand may be asked again under its name, and a seat that nobody renews ends within a minute.
    await store.give_errands(kind, node, names)


def outcome_of(kind: type[_Outcome], asked: Reply | str) -> _Outcome | None:
    """Return the outcome in a node's reply; None where there is none, or none that can be read."""
    if isinstance(asked, str) or asked.result is None:
        return None
    try:
        return kind.from_text(asked.result)
    except ValueError:
        return None


def why_none(asked: Reply | str) -> str:
    """Return in words why there is no outcome."""
    return asked if isinstance(asked, str) else asked.error or "its reply cannot be read"
