"""Where a session's box stands, from its place on a node to its end: loop → **placement** → node."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

from coordinator.collect import ReplyReader
from coordinator.dispatch import Dispatcher
from coordinator.errors import NoBox
from coordinator.store import Store
from coordinator.watch import Watch
from worker.contract.orders import (
    BoxOrder,
    Contract,
    FinishOrder,
    FinishOutcome,
    NodeLife,
    PrepareOrder,
    PrepareOutcome,
)
from worker.contract.replies import Reply

log = logging.getLogger(__name__)

_Order = TypeVar("_Order", bound=Contract)

NODE_WAIT_S = 60.0
"""How long a cluster without any live node is waited for."""
POLL_S = 0.05
PREPARE_S = 180.0
FINISH_S = 120.0


class Placement:
    """Reserves places, has boxes made ready, and ends them."""

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

    async def place(self, session: str) -> NodeLife:
        """Return the node that has a place for the session from now on; waits while all places are taken.

        Raises:
            NoBox: no node has been alive for a minute.
        """
        nobody_since = self._clock()
        while True:
            try:
                views = [view for view in await self._store.nodes() if view.is_leased and view.life.state == "ready"]
                for view in views:
                    if await self._store.take_place(view.life, session):
                        self._watch.follow(view.life.node, view.life.incarnation)
                        return view.life
                if views:
                    nobody_since = self._clock()
            except RedisError as exc:
                log.info("placement waits for Redis", extra={"error": str(exc)})
            if self._clock() - nobody_since > NODE_WAIT_S:
                raise NoBox(
                    "No worker is alive: start one with `python -m worker run` (its log says why one that was "
                    "started is not there)."
                )
            await asyncio.sleep(POLL_S)

    async def prepare(self, box: BoxOrder, node: NodeLife) -> PrepareOutcome:
        """Return once the session's box stands.

        Raises:
            NoBox: it cannot be started; says why.
        """
        order = PrepareOrder(box=box, node=node.node, incarnation=node.incarnation)
        reply = await self._ask(self._dispatcher.send_prepare, order, f"{box.session}/prepare", PREPARE_S)
        if reply is None or reply.result is None:
            raise NoBox(f"The node {node.node} did not say that the box is ready: {_why(reply, PREPARE_S)}.")
        outcome = PrepareOutcome.model_validate(reply.result)
        if outcome.error is not None:
            raise NoBox(outcome.error)
        return outcome

    async def finish(self, box: BoxOrder, node: NodeLife, *, apply: bool) -> FinishOutcome:
        """End the session's box, give its place back, and return what became of the workspace; never raises for it."""
        order = FinishOrder(box=box, node=node.node, incarnation=node.incarnation, apply=apply)
        try:
            reply = await self._ask(self._dispatcher.send_finish, order, f"{box.session}/finish", FINISH_S)
        finally:
            await self._give_back(node, box.session)
        if reply is None or reply.result is None:
            why = f"The node {node.node} did not say what became of the workspace: {_why(reply, FINISH_S)}."
            return FinishOutcome(session=box.session, error=why)
        return FinishOutcome.model_validate(reply.result)

    async def _give_back(self, node: NodeLife, session: str) -> None:
        try:
            await self._store.give_place(node.node, session)
            await self._store.close_session(session)
        except RedisError as exc:
            log.warning("the place is left to expire", extra={"session_id": session, "error": str(exc)})

    async def _ask(
        self, send: Callable[[_Order, str], Awaitable[bool]], order: _Order, task_id: str, wait_s: float
    ) -> Reply | None:
        future = self._reader.expect(task_id)
        try:
            await send(order, task_id)
            return await asyncio.wait_for(future, wait_s)
        except TimeoutError:
            return None
        finally:
            self._reader.forget(task_id)


def _why(reply: Reply | None, wait_s: float) -> str:
    return f"nothing came within {wait_s:.0f} s" if reply is None else reply.error
