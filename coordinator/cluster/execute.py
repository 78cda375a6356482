"""Runs one step's orders on the session's node: partition → **execute** (lanes, dispatch, settle) → budget."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.lanes import Lanes
from coordinator.cluster.outcomes import BY_A_PERSON, cancelled_outcome, did_not_run
from coordinator.cluster.patience import patiently
from coordinator.cluster.settle import CANCEL_AGAIN_S, CANCEL_S, MAX_ATTEMPTS, MustResend, Sent, Settler, resend_order
from coordinator.cluster.store import Store
from coordinator.cluster.watch import Watch
from coordinator.ending import either, end
from coordinator.errors import LostSession
from coordinator.session.partition import Travel
from coordinator.session.reading import is_last_owner
from worker.contract import keys
from worker.contract.orders import CallKey, CallOrder, CallOutcome, NodeLife
from worker.contract.scripts import NO_PLACE

MAX_LINKS = 16
"""A message holds all links behind its own: of a longer chain the whole would travel quadratically often."""
LIFE_POLL_S = 0.02


@dataclass(frozen=True)
class Job:
    """An order with the limit of its tool."""

    order: CallOrder
    timeout_s: float
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a person cancels this call, and no other one."""


OnOutcome = Callable[[CallOutcome], Awaitable[None]]
Regain = Callable[[asyncio.Event], Awaitable[None]]
"""Takes the session's place on its node again, in its turn; until the event is set."""


class _Placeless(Exception):
    """The session's place was given back while it was idle."""


def _nobody_asks(waited_s: float) -> None:
    pass


class Executor:
    """Runs stretches of calls; every order gets exactly one outcome, handed on as it comes.

    Use `async with`: as long as it is open, the lanes of long calls are renewed.
    """

    def __init__(self, *, store: Store, dispatcher: Dispatcher, settler: Settler, watch: Watch) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._settler = settler
        self._watch = watch
        self._lanes = Lanes(self._take_lanes, store.give_lanes)
        self._run_id = ""
        """The life of Redis that gave the last lane."""
        self._keeping: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Say to nodes that calls are to end."""
        self.on_lane: Callable[[float], None] = _nobody_asks
        """Told of each call of a group, and of each chain, that has its lane: how many seconds it waited for that."""

    async def __aenter__(self) -> "Executor":
        self._keeping = asyncio.create_task(self._lanes.keep(lambda: self._watch.run_id), name="lanes")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._keeping is not None
        await end(self._keeping, *self._ending)

    @property
    def run_id(self) -> str:
        """The life of Redis as it was asked last, or an earlier one; "" before it was."""
        return self._watch.run_id or ""

    async def run(
        self,
        travel: Travel,
        jobs: Sequence[Job],
        node: NodeLife,
        cancelled: asyncio.Event,
        on_outcome: OnOutcome,
        unwanted: asyncio.Event | None = None,
        regain: Regain | None = None,
    ) -> None:
        """Run a stretch to its end; `on_outcome` gets one outcome for each job, in the order in which they come.

        `unwanted` is set when no lane is to be waited for any more: each job was cancelled for itself. `regain` is
        asked, before any of them has a lane, where the session has no place; without it the node sees to one.

        Raises:
            RedisLost, LostSession: the session cannot go on; some calls have no outcome then.
        """
        async with either(cancelled, unwanted or cancelled) as no_lane:
            match travel:
                case Travel.GROUP:
                    await self._run_group(jobs, node, cancelled, no_lane, regain, on_outcome)
                case Travel.CHAIN:
                    await self._run_chain(list(jobs), node, cancelled, no_lane, regain, on_outcome)

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
        """Return what became of a call of an earlier owner of its session, as `Settler.recover` finds out.

        Raises:
            RedisLost: Redis stayed away.
        """
        return await self._settler.recover(
            order, timeout_s, run_id=run_id, has_begun=has_begun, cancelled=cancelled, stopped=stopped
        )

    async def give_up(self, node: str, call_keys: Sequence[CallKey], cancelled: asyncio.Event) -> None:
        """Let none of these calls start, end those that run on a node, and give their lanes back.

        Raises:
            RedisLost: Redis stayed away.
        """
        fenced = await patiently(partial(self._store.fence, call_keys), cancelled)
        running = [key for key, is_fenced in zip(call_keys, fenced, strict=True) if not is_fenced]
        if running:
            task = asyncio.create_task(self._end_calls(node, running), name=f"end of calls on {node}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        await patiently(partial(self._store.give_lanes, node, [str(key) for key in call_keys]), cancelled)

    async def _end_calls(self, node: str, running: Sequence[CallKey]) -> None:
        """Say it as often as of a call that is waited for: what is said once may be lost, and they would run on."""
        until = time.monotonic() + CANCEL_S
        while time.monotonic() < until:
            await self._dispatcher.cancel(node, running)
            await asyncio.sleep(CANCEL_AGAIN_S)

    async def _take_lanes(self, node: str, limit: int, holders: Sequence[str], session: str = "") -> int:
        got, self._run_id = await self._store.take_lanes(node, limit, holders, session)
        if got == NO_PLACE:
            raise _Placeless
        return got

    async def _lanes_for(
        self,
        jobs: Sequence[Job],
        node: str,
        limit: int,
        came_at: float,
        cancelled: asyncio.Event,
        regain: Regain | None,
    ) -> int:
        """Return how many of the jobs, from the first, have a lane now, as `Lanes.take`; the session has its place."""
        holders, principal = [str(job.order.key) for job in jobs], jobs[0].order.principal
        session = jobs[0].order.box.session if regain is not None else ""
        while True:
            ask = partial(self._take_lanes, session=session)
            try:
                got = await self._lanes.take(node, limit, holders, cancelled, principal=principal, ask=ask)
                break
            except _Placeless:
                assert regain is not None
                await regain(cancelled)
                # One that is gone again by now, or could not be had, is left to the node, which asks for it itself.
                session, came_at = "", time.monotonic()
        waited_s = time.monotonic() - came_at
        for _ in range(got):
            self.on_lane(waited_s)
        return got

    async def _run_group(
        self,
        jobs: Sequence[Job],
        node: NodeLife,
        cancelled: asyncio.Event,
        no_lane: asyncio.Event,
        regain: Regain | None,
        on_outcome: OnOutcome,
    ) -> None:
        waiting, running, came_at = list(jobs), set[asyncio.Task[None]](), time.monotonic()
        try:
            while waiting and not cancelled.is_set():
                got = await self._lanes_for(waiting, node.node, node.lanes, came_at, no_lane, regain)
                if got == 0:
                    break
                batch, waiting = waiting[:got], waiting[got:]
                batch = await self._for_present_life(batch, node.node, cancelled)
                sent = [self._expect(job, self._run_id) for job in batch]
                # Whoever follows a call gives its lane back, also where sending is broken off.
                running |= {asyncio.create_task(self._follow(one, node.node, cancelled, on_outcome)) for one in sent}
                await self._dispatcher.send_group([job.order for job in batch])
            for job in waiting:
                await on_outcome(_never_sent(job))
            await asyncio.gather(*running)
        except BaseException:
            # What one call's follower raises ends the others too: nobody is left to take their outcomes.
            await end(*running)
            # A call whose follower never began has its lane still.
            await self._lanes.give(node.node, *[str(job.order.key) for job in jobs])
            raise

    async def _follow(self, sent: Sent, node: str, cancelled: asyncio.Event, on_outcome: OnOutcome) -> None:
        """Settle one call of a group, sending it again where it certainly did not run."""
        holder = str(sent.order.key)
        try:
            while True:
                try:
                    outcome = await self._settler.settle(sent, cancelled)
                    break
                except MustResend as exc:
                    order = await self._next_attempt(sent.order, cancelled)
                    if order is None:
                        (outcome,) = _given_up([sent.order], exc.reason, cancelled)
                        break
                    run_id = await patiently(self._store.run_id, cancelled)
                    sent = self._expect(Job(order, sent.timeout_s, sent.stopped), run_id)
                    await self._dispatcher.send_group([order])
            await on_outcome(outcome)
        finally:
            await self._lanes.give(node, holder)

    async def _run_chain(
        self,
        jobs: list[Job],
        node: NodeLife,
        cancelled: asyncio.Event,
        no_lane: asyncio.Event,
        regain: Regain | None,
        on_outcome: OnOutcome,
    ) -> None:
        # One lane for the whole chain: only one of its links runs at a time. A quarter of the lanes is left to
        # reading calls, which must not wait behind long commands.
        holder, limit = str(jobs[0].order.key), max(1, node.lanes - node.lanes // 4)
        try:
            await self._lanes_for(jobs[:1], node.node, limit, time.monotonic(), no_lane, regain)
            jobs = await self._for_present_life(jobs, node.node, cancelled)
            run_id = self._run_id
            while jobs:
                jobs = await self._run_links(jobs, run_id, cancelled, on_outcome)
                run_id = await patiently(self._store.run_id, cancelled) if jobs else ""
        finally:
            await self._lanes.give(node.node, holder)

    async def _run_links(
        self, jobs: list[Job], run_id: str, cancelled: asyncio.Event, on_outcome: OnOutcome
    ) -> list[Job]:
        """Send the jobs as one chain and settle its links; return what must be sent as a new chain.

        `run_id`: this life of Redis.
        """
        later = jobs[MAX_LINKS:]
        jobs = jobs[:MAX_LINKS]
        sent = [self._expect(job, run_id, startable=at == 0) for at, job in enumerate(jobs)]
        try:
            if not cancelled.is_set():
                await self._dispatcher.send_chain([job.order for job in jobs])
            for at, link in enumerate(sent):
                link.startable_at = min(link.startable_at, self._settler.now())
                try:
                    outcome = await self._settler.settle(link, cancelled)
                except MustResend as exc:
                    unstarted = await self._break_chain(sent[at:], cancelled, on_outcome)
                    again = await self._links_again(unstarted, cancelled)
                    if again is not None:
                        return again + later
                    rest = [one.order for one in unstarted] + [job.order for job in later]
                    for given_up in _given_up(rest, exc.reason, cancelled):
                        await on_outcome(given_up)
                    return []
                await on_outcome(outcome)
                if link.never_begins:
                    await self._go_on_behind(sent[at + 1 :], cancelled)
            return later
        finally:
            for one in sent:
                self._settler.forget(one)

    async def _go_on_behind(self, rest: Sequence[Sent], cancelled: asyncio.Event) -> None:
        """Send the links behind one that a person cancelled before it began: a node goes no further than that.

        Under their keys: no node comes to them by the first message any more, and a key can be claimed only once.
        """
        orders = [one.order for one in rest if not one.stopped.is_set()]
        if orders and not cancelled.is_set():
            await self._dispatcher.send_chain(orders)

    def _expect(self, job: Job, run_id: str, *, startable: bool = True) -> Sent:
        """Return the handle of a job that is about to be sent in this life of Redis."""
        sent = self._settler.expect(job.order, job.timeout_s, run_id=run_id, startable=startable)
        sent.stopped = job.stopped
        return sent

    async def _break_chain(self, rest: Sequence[Sent], cancelled: asyncio.Event, on_outcome: OnOutcome) -> list[Sent]:
        """Break the chain before these links; return those that never start under their keys, settle the others."""
        fence = partial(self._store.fence, [one.order.key for one in rest])
        fenced = await patiently(fence, cancelled)
        for one, is_fenced in zip(rest, fenced, strict=True):
            # A node that refused a link hands the next one on all the same, and may have started that.
            if not is_fenced:
                await on_outcome(await self._settler.settle(one, cancelled))
        return [one for one, is_fenced in zip(rest, fenced, strict=True) if is_fenced]

    async def _links_again(self, rest: Sequence[Sent], cancelled: asyncio.Event) -> list[Job] | None:
        """Return links that never start under their keys as they are sent again, None if they are not."""
        orders = [order for one in rest if (order := await self._next_attempt(one.order, cancelled)) is not None]
        if len(orders) < len(rest):
            return None
        # All for one life of the node: it must not refuse one link and run those behind it.
        meant = {"incarnation": orders[-1].incarnation} if orders else {}
        again = [order.model_copy(update=meant) for order in orders]
        return [Job(order, one.timeout_s, one.stopped) for order, one in zip(again, rest, strict=True)]

    async def _next_attempt(self, order: CallOrder, cancelled: asyncio.Event) -> CallOrder | None:
        """Return the order to send again once its node lives; None when it was sent often enough or no node is left.

        Raises:
            LostSession: another coordinator has the session now.
        """
        if order.key.attempt >= MAX_ATTEMPTS:
            return None
        incarnation = await self._life(order.node, cancelled)
        if incarnation is None:
            return None
        key = order.key
        # A Redis that was emptied knows nothing of the session, and would have the node refuse all of its calls.
        is_last = partial(is_last_owner, Path(order.box.session_dir), order.box.generation)
        begin = partial(self._store.begin_step, key.session, key.generation, key.step, is_last)
        if not await patiently(begin, cancelled):
            raise LostSession(f"session {key.session} was taken over by another coordinator")
        return resend_order(order, incarnation)

    async def _for_present_life(self, jobs: Sequence[Job], node: str, cancelled: asyncio.Event) -> list[Job]:
        """Return the jobs for the life that the node has now; unchanged where it has none, and settled then."""
        incarnation = await self._life(node, cancelled)
        if incarnation is None:
            return list(jobs)
        meant = {"incarnation": incarnation}
        return [replace(job, order=job.order.model_copy(update=meant)) for job in jobs]

    async def _life(self, node: str, cancelled: asyncio.Event) -> str | None:
        """Return the node's incarnation, waited for if it is being restarted; None if it does not come back."""
        while (health := self._watch.health(node)).incarnation is None:
            if cancelled.is_set() or health.is_gone or self._watch.away_s > keys.OUTAGE_S:
                return None
            await asyncio.sleep(LIFE_POLL_S)
        return health.incarnation


def _never_sent(job: Job) -> CallOutcome:
    words = (
        f"{BY_A_PERSON} before it ran." if job.stopped.is_set() else "The session was cancelled before this call ran."
    )
    return cancelled_outcome(job.order.key, words)


def _given_up(orders: Sequence[CallOrder], reason: str, cancelled: asyncio.Event) -> list[CallOutcome]:
    if cancelled.is_set():
        return [cancelled_outcome(one.key, "The session was cancelled before this call ran.") for one in orders]
    return did_not_run(orders, reason)
