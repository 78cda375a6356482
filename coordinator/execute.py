"""Runs one step's orders on the session's node: partition → **execute** (lanes, dispatch, settle) → budget."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from coordinator.dispatch import Dispatcher
from coordinator.partition import Travel
from coordinator.settle import MAX_ATTEMPTS, MustResend, Sent, Settler, cancelled_outcome, did_not_run, resend_order
from coordinator.store import Store
from coordinator.watch import Watch
from worker.contract.orders import CallOrder, CallOutcome, NodeLife

LANE_POLL_S = 0.02
BACK_S = 45.0
"""How long a node that was lost may take to come back before its unsent calls are given up."""


@dataclass(frozen=True)
class Job:
    """An order with the limit of its tool."""

    order: CallOrder
    timeout_s: float


OnOutcome = Callable[[CallOutcome], Awaitable[None]]


class Executor:
    """Runs stretches of calls; every order gets exactly one outcome, handed on as it comes."""

    def __init__(self, *, store: Store, dispatcher: Dispatcher, settler: Settler, watch: Watch) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._settler = settler
        self._watch = watch

    async def run(
        self, travel: Travel, jobs: Sequence[Job], node: NodeLife, cancelled: asyncio.Event, on_outcome: OnOutcome
    ) -> None:
        """Run a stretch to its end; `on_outcome` gets one outcome for each job, in the order in which they come."""
        match travel:
            case Travel.GROUP:
                await self._run_group(jobs, node, cancelled, on_outcome)
            case Travel.CHAIN:
                await self._run_chain(list(jobs), node, cancelled, on_outcome)

    async def _run_group(
        self, jobs: Sequence[Job], node: NodeLife, cancelled: asyncio.Event, on_outcome: OnOutcome
    ) -> None:
        waiting, running = list(jobs), set[asyncio.Task[None]]()
        while waiting and not cancelled.is_set():
            holders = [str(job.order.key) for job in waiting]
            got = await self._store.take_lanes(node.node, node.lanes, holders)
            if got == 0:
                await asyncio.sleep(LANE_POLL_S)
                continue
            batch, waiting = waiting[:got], waiting[got:]
            sent = [self._settler.expect(job.order, job.timeout_s, startable=True) for job in batch]
            await self._dispatcher.send_group([job.order for job in batch])
            running |= {asyncio.create_task(self._follow(one, node.node, cancelled, on_outcome)) for one in sent}
        for job in waiting:
            await on_outcome(cancelled_outcome(job.order.key, "The session was cancelled before this call ran."))
        await asyncio.gather(*running)

    async def _follow(self, sent: Sent, node: str, cancelled: asyncio.Event, on_outcome: OnOutcome) -> None:
        """Settle one call of a group, sending it again where it certainly did not run."""
        holder = str(sent.order.key)
        try:
            while True:
                try:
                    outcome = await self._settler.settle(sent, cancelled)
                    break
                except MustResend as exc:
                    order = await self._next_attempt(sent.order)
                    if order is None:
                        (outcome,) = did_not_run([sent.order], exc.reason)
                        break
                    sent = self._settler.expect(order, sent.timeout_s, startable=True)
                    await self._dispatcher.send_group([order])
        finally:
            await self._store.give_lanes(node, [holder])
        await on_outcome(outcome)

    async def _run_chain(
        self, jobs: list[Job], node: NodeLife, cancelled: asyncio.Event, on_outcome: OnOutcome
    ) -> None:
        # One lane for the whole chain: only one of its links runs at a time. A quarter of the lanes is left to
        # reading calls, which must not wait behind long commands.
        holder, limit = str(jobs[0].order.key), max(1, node.lanes - node.lanes // 4)
        while not cancelled.is_set():
            if await self._store.take_lanes(node.node, limit, [holder]):
                break
            await asyncio.sleep(LANE_POLL_S)
        try:
            while jobs:
                jobs = await self._run_links(jobs, cancelled, on_outcome)
        finally:
            await self._store.give_lanes(node.node, [holder])

    async def _run_links(self, jobs: list[Job], cancelled: asyncio.Event, on_outcome: OnOutcome) -> list[Job]:
        """Send the jobs as one chain and settle its links; return what must be sent as a new chain."""
        sent = [self._settler.expect(job.order, job.timeout_s, startable=at == 0) for at, job in enumerate(jobs)]
        if not cancelled.is_set():
            await self._dispatcher.send_chain([job.order for job in jobs])
        for at, link in enumerate(sent):
            link.behind = tuple(later.order.key for later in sent[at + 1 :])
            link.startable_at = min(link.startable_at, self._settler.now())
            try:
                outcome = await self._settler.settle(link, cancelled)
            except MustResend as exc:
                # The chain is broken here: nothing behind this link may start any more under its old key.
                rest = sent[at:]
                await self._store.fence([one.order.key for one in rest])
                for one in rest:
                    self._settler.forget(one)
                orders = [await self._next_attempt(one.order) for one in rest]
                again = [Job(order, one.timeout_s) for order, one in zip(orders, rest, strict=True) if order]
                if len(again) == len(rest):
                    return again
                for given_up in did_not_run([one.order for one in rest], exc.reason):
                    await on_outcome(given_up)
                return []
            await on_outcome(outcome)
        return []

    async def _next_attempt(self, order: CallOrder) -> CallOrder | None:
        """Return the order to send again once its node lives; None when it was sent often enough or no node is left."""
        if order.key.attempt >= MAX_ATTEMPTS:
            return None
        deadline = asyncio.get_running_loop().time() + BACK_S
        while (incarnation := self._watch.health(order.node).incarnation) is None:
            if asyncio.get_running_loop().time() > deadline:
                return None
            await asyncio.sleep(LANE_POLL_S)
        return resend_order(order, incarnation)
