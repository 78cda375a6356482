"""One session's place: a node is found for it, its box stands, and in the end both are given back.

A session that goes on with a new owner asks for the node that has its box, and waits for it while it may come back.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.patience import CANCELLED_S, patiently
from coordinator.cluster.seat import Seat
from coordinator.cluster.turns import PlaceWanted
from coordinator.ending import first
from coordinator.errors import LostSession, NoBox, NodeTrouble, RedisLost
from coordinator.session.box_order import box_order, place_wanted
from coordinator.session.events import EventSink
from coordinator.session.loop import Ending
from coordinator.session.reading import is_last_owner
from coordinator.session.request import SessionRequest
from coordinator.session.seen_file import forget_seen, keep_seen, read_seen
from coordinator.session.session_events import BoxReplaced, Notice, SessionPlaced
from coordinator.session.step import StepRunner
from worker.contract import keys
from worker.contract.checks import Check, CheckOutcome
from worker.contract.mcp import McpListing
from worker.contract.orders import BoxOrder, FinishOutcome, NodeLife, PrepareOutcome, ProjectNotes, WorkspaceMode

log = logging.getLogger(__name__)

_T = TypeVar("_T")

AGAIN_S = (0.5, 1.0, 2.0, 4.0)
"""The pauses before a node that failed is asked for the box again."""
TROUBLE_S = 600.0
"""How long that is done at most; a node that is at it for so long is not asked again."""
SEAT_REDIS_S = 60.0
"""How long a session that has not begun waits for Redis."""
COMFORT_S = 2.0


class SessionPlace:
    """Where one session runs, from its opening in Redis to its end there.

    Args:
        request: What the session was asked for.
        cluster: Where.
        session_id: Its id.
        session_dir: Its directory.
        generation: The generation in which it is ours; 0 for a new session.
        before: Where its box stood before; None for a session that had none.
        tools: The tools that it may use; None is all.
        emit: Is told where it is.
        on_lost: Called when another coordinator has it.
        on_cancel: Called when another process asks for its cancel.
    """

    def __init__(
        self,
        request: SessionRequest,
        *,
        cluster: Cluster,
        session_id: str,
        session_dir: Path,
        generation: int = 0,
        before: SessionPlaced | None = None,
        tools: frozenset[str] | None,
        emit: EventSink,
        on_lost: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self._request = request
        self._cluster = cluster
        self._session = session_id
        self._session_dir = session_dir
        self._is_open = generation > 0
        self._generation = generation or 1
        self._home = before.node if before else None
        self._has_stood = before is not None
        """The session had a box, here or before."""
        self._stood_on = _life_of(before) if before and before.host else None
        """The node that had its box last, and its machine; None where either is not known."""
        self._tools = tools
        self._emit = emit
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._node: NodeLife | None = None
        self._is_seated = False
        """Its box stood at least once: its workspace is there."""
        self.wants_notes = not self._is_open and request.may_have_project_notes
        self.notes: ProjectNotes | None = None
        """What the workspace has for agents; None until the box stands."""
        self.mcp: McpListing | None = None
        """The tools of the session's MCP servers, as they were asked for last; None where it has none."""
        self.is_let_go = False
        """Its box was ended: no other owner goes on with it from now on."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether the session had a box before, and its present owner has none of it yet."""
        return self._has_stood and not self._is_seated

    @property
    def box(self) -> BoxOrder:
        """The order for its box."""
        return box_order(self._request, self._session, self._session_dir, self._generation)

    async def take(self) -> Seat:
        """Return the session's seat with its box standing.

        Raises:
            NoBox: it cannot be had.
            LostSession: another coordinator has the session.
            TranscriptError: where it is cannot be kept.
        """
        await self._open()
        return await self._seated()

    async def present(self, seat: Seat, stop: asyncio.Event) -> Seat:
        """Return the seat to be used in place of one that the session had: on another node where its own is lost.

        A node that may come back is waited for, and so is a place, until `stop` is set. A directory is on one machine:
        the lost node's next life, or another node there, has the box then.

        Raises:
            NoBox: there is no other node.
        """
        lost = seat.node.node
        if await self._cluster.placement.outlasts(lost, stop, self._tell):
            return seat
        log.warning("a session moves", extra={"session_id": self._session, "from": lost})
        self._emit(BoxReplaced(reason=f"its node {lost} is gone"))
        self._home = lost
        return await first(asyncio.create_task(self._seated()), stop) or seat

    async def same(self, seat: Seat, stop: asyncio.Event) -> Seat:
        """Return a sub-agent's seat while its node is there: it ends with it, and the session above it moves.

        Raises:
            NoBox: the node is lost.
        """
        if not await self._cluster.placement.outlasts(seat.node.node, stop):
            raise NoBox(f"the node {seat.node.node} is gone")
        return seat

    async def regain(self, seat: Seat, stop: asyncio.Event) -> None:
        """Take the place again that the session's node has given back, in its turn; or until `stop` is set."""
        await self._cluster.placement.regain(self._session, seat.node, self._wanted(), stop, self._tell)

    async def _seated(self) -> Seat:
        request = self._request
        node, prepared = await self._prepared()
        self._has_stood = True
        self._is_seated = True
        self._stood_on = node
        self.notes = prepared.notes
        self.mcp = prepared.mcp
        run_id = await self._ask(self._cluster.store.run_id)
        self._emit(
            SessionPlaced(
                node=node.node,
                incarnation=node.incarnation,
                host=node.host,
                run_id=run_id,
                bounds=dict(prepared.bounds),
                image_id=prepared.image_id,
                versions=dict(node.versions),
            )
        )
        return Seat(
            self.box,
            node,
            request.workspace.policy,
            request.principal,
            rules=request.rules,
            is_read_only=request.is_read_only,
            tools=self._tools,
            attributes=request.attributes,
        )

    async def _prepared(self) -> tuple[NodeLife, PrepareOutcome]:
        """Return the node on which the box stands, and what it said of it.

        A node that fails is asked again, a bounded number of times; in place of one that is lost another one is.

        Raises:
            NoBox: it cannot be had.
        """
        placement = self._cluster.placement
        pauses, began = iter(AGAIN_S), time.monotonic()
        while True:
            self._node = node = await self._placed()
            await self._move_to(node)
            try:
                return node, await placement.prepare(self.box, node, self._tell, wants_notes=self.wants_notes)
            except NoBox as exc:
                self._home = node.node
                # One that is back by now is asked again, and not taken for one that refuses.
                if await placement.outlasts(node.node, asyncio.Event()):
                    pause_s = next(pauses, None)
                    if not isinstance(exc, NodeTrouble) or pause_s is None or time.monotonic() - began > TROUBLE_S:
                        raise
                    log.warning("a box is asked for again", extra={"session_id": self._session, "error": str(exc)})
                    await asyncio.sleep(pause_s)

    async def look_at_servers(self, digest: str) -> bool:
        """Ask the node for the tools of the MCP servers where they are others now; return whether they were."""
        if self._node is None or self.mcp is None or digest == self.mcp.digest:
            return False
        try:
            prepared = await self._cluster.placement.prepare(self.box, self._node)
        except NoBox as exc:
            log.warning("MCP tools are as they were", extra={"session_id": self._session, "error": str(exc)})
            return False
        self.mcp = prepared.mcp or self.mcp
        return True

    async def copy_to(self, target: str) -> None:
        """Copy the workspace as it is now for a fork; nothing of the session runs in it meanwhile.

        Raises:
            NoBox: it cannot be copied, or is not there yet.
        """
        if self._node is None or not self._is_seated:
            raise NoBox(f"Session {self._session} has no workspace yet: its box does not stand. Ask again in a moment.")
        target_dir = self._session_dir.with_name(target)
        await self._cluster.placement.copy(self.box, self._node, target, target_dir)

    async def leave(self, ending: Ending, steps: StepRunner, *, is_whole: bool) -> FinishOutcome:
        """End the box and leave nothing of the session in Redis; a session that may go on keeps its private copy.

        A copy in which no box ever stood holds nothing that its directory does not. Unless the transcript `is_whole`
        the claims stay: whoever goes on with the session learns from them alone that a call has run.

        Raises:
            LostSession: another coordinator has the session.
        """
        placement, store = self._cluster.placement, self._cluster.store
        away_s = CANCELLED_S if ending.status == "cancelled" else keys.OUTAGE_S
        await self._demand_ours(away_s)
        check = self._check(ending)
        finished = await self._place_for_check() if check is not None else FinishOutcome(session=self._session)
        if self._node is not None:
            finished = await self._finished(ending, check, away_s)
        # It may have taken long, and what is given back now may be another owner's.
        await self._demand_ours(away_s)
        self.is_let_go = True
        # A Redis that says nothing must not hold up the end: both are for comfort.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMFORT_S):
                await self._cluster.ownership.disown(self._session)
                if ending.status != "completed":
                    await self._keep_seen()
        # An earlier owner may have died, or a move been broken off, between a place on another node and giving back the
        # one before it.
        only = self._node.node if self._node is not None and self._generation == 1 and self._home is None else None
        if await placement.withdraw(self._session, only, away_s=away_s):
            try:
                await store.withdraw_grants(self._session, steps.granted)
                if is_whole:
                    await store.forget_calls(steps.keys)
            except RedisError as exc:
                log.info("claims are left to expire", extra={"session_id": self._session, "error": str(exc)})
        else:
            self._cluster.ownership.owe(
                self._session, partial(placement.give_up, self._session, only, self._generation)
            )
        return finished

    async def _finished(self, ending: Ending, check: Check | None, away_s: float) -> FinishOutcome:
        """End the box where it stands; where its node is lost, before or meanwhile, another says what became of it."""
        is_done, finished = ending.status == "completed", FinishOutcome(session=self._session)
        keep = self._request.keep == "always" or (self._request.keep == "unfinished" and not is_done)
        while self._node is not None:
            try:
                if ending.status != "cancelled":
                    await self._leave_lost(self._node)
            except NoBox as exc:
                return FinishOutcome(session=self._session, error=str(exc))
            finished = await self._cluster.placement.finish(
                self.box,
                self._node,
                apply=self._request.apply and is_done,
                check=check,
                keep_workspace=self._has_stood and keep,
                away_s=away_s,
            )
            # One that was told to end before it came to this says nothing any more.
            if finished.error is None or ending.status == "cancelled" or not await self._is_lost(self._node):
                break
        return finished

    async def _demand_ours(self, away_s: float) -> None:
        """Raise LostSession if another coordinator has it by now: who stood still or was cut off was told nothing."""
        # While Redis is away no node can be told anything either.
        with contextlib.suppress(RedisLost):
            is_lost = partial(self._cluster.ownership.is_lost, self._session)
            if await self._cluster.placement.until_answered(is_lost, away_s):
                raise LostSession(f"session {self._session} was taken over by another coordinator")

    async def _placed(self) -> NodeLife:
        return await self._cluster.placement.place(self._session, self._home, self._wanted(), self._tell)

    def _tell(self, words: str) -> None:
        self._emit(Notice(text=words))

    def _wanted(self) -> PlaceWanted:
        return place_wanted(self._request, self._stood_on)

    async def _is_lost(self, node: NodeLife) -> bool:
        """Return whether a node is lost whose session's workspace others have as well."""
        is_copy = self._request.workspace.mode is WorkspaceMode.COPY
        return is_copy and not await self._cluster.placement.outlasts(node.node, asyncio.Event())

    async def _leave_lost(self, node: NodeLife) -> None:
        """Where the node is lost, find another one that says what became of the workspace."""
        if await self._is_lost(node):
            self._home, self._node = node.node, None
            self._node = await self._placed()
            await self._move_to(self._node)

    async def _open(self) -> None:
        """Make the session ours in Redis, and give it back what it had seen.

        Raises:
            NoBox: Redis cannot be asked.
            LostSession: another coordinator has it.
        """
        store, ownership = self._cluster.store, self._cluster.ownership
        # A new session's id and first segment are its own: that generation is nobody else's, and may be said again.
        ownership.own(
            self._session,
            self._generation,
            is_adoptable=self._request.is_adoptable,
            on_lost=self._on_lost,
            on_cancel=self._on_cancel,
            is_last=partial(is_last_owner, self._session_dir, self._generation),
        )
        if not await self._ask(partial(ownership.note, self._session)):
            raise LostSession(f"session {self._session} was taken over by another coordinator")
        if records := read_seen(self._session_dir):
            await self._ask(partial(store.restore_seen_files, self._session, records))
            forget_seen(self._session_dir)

    async def _move_to(self, node: NodeLife) -> None:
        """Say that the box is there from now on; a node that had it before need not keep its place."""
        # It may have waited long for its turn.
        await self._demand_ours(SEAT_REDIS_S)
        store = self._cluster.store
        await self._ask(partial(store.seat_session, self._session, node.node))
        if self._home is not None and self._home != node.node:
            await self._ask(partial(store.give_place, self._home, self._session))

    async def _keep_seen(self) -> None:
        """Keep the read metadata with the session."""
        try:
            if records := await self._cluster.store.seen_files(self._session):
                keep_seen(self._session_dir, records)
        except (RedisError, OSError) as exc:
            log.info("read metadata is not kept", extra={"session_id": self._session, "error": str(exc)})

    async def _place_for_check(self) -> FinishOutcome:
        """Find a place for the check of a session that was over before it had one; the outcome where there is none."""
        finished = FinishOutcome(session=self._session)
        if self._node is None:
            try:
                self._node = await self._placed()
            except NoBox as exc:
                return finished.model_copy(update={"check": CheckOutcome(error=str(exc), is_infrastructure=True)})
        return finished

    def _check(self, ending: Ending) -> Check | None:
        """Return what judges the session's work, its files laid out; None where there is nothing to judge."""
        check = self._request.check
        if check is None or ending.status not in ("completed", "stopped"):
            return None
        try:
            check.lay_out(self._session_dir)
        except OSError as exc:
            # The node says of a check whose files are missing that it was not run.
            log.warning("a check's files are missing", extra={"session_id": self._session, "error": str(exc)})
        return check.order

    async def _ask(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        # A session that is cancelled cancels this task: nothing here waits for its flag.
        try:
            return await patiently(ask, asyncio.Event(), SEAT_REDIS_S)
        except RedisLost as exc:
            raise NoBox(f"{exc} Start it, or correct SANDHOG_REDIS_URL.") from exc


def _life_of(placed: SessionPlaced) -> NodeLife:
    return NodeLife(node=placed.node, incarnation=placed.incarnation, places=0, lanes=0, host=placed.host)
