"""Where a session's box stands, from its place on a node to its end: loop → **placement** → node."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from redis.exceptions import RedisError

from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.errands import BEGIN, RESEND_S, Errands, outcome_of, why_none
from coordinator.cluster.patience import patiently
from coordinator.cluster.store import NodeView, Store
from coordinator.cluster.turns import PlaceWanted, Turns
from coordinator.cluster.unfit import directory_away, nobody, other_labels, other_tools, other_volume
from coordinator.cluster.watch import Watch
from coordinator.ending import end, first
from coordinator.errors import NoBox, NodeTrouble, NoSource, RedisLost
from worker.contract import keys
from worker.contract.checks import Check
from worker.contract.orders import (
    BoxOrder,
    CopyOrder,
    CopyOutcome,
    FinishOrder,
    FinishOutcome,
    NodeLife,
    PrepareOrder,
    PrepareOutcome,
)

log = logging.getLogger(__name__)

_T = TypeVar("_T")

NODE_WAIT_S = 60.0
"""How long a cluster without any live node is waited for."""
TOOLS_WAIT_S = 5.0
"""How long nodes that all have other own tools are waited for to change."""
POLL_S = 0.05
MAX_PAUSE_S = 2.0
"""Who stands far behind asks less often; much shorter than a ticket lasts."""
LISTED_S = 0.25
"""How old the list of nodes may be."""
TELL_S = 15.0
"""How often a waiting session says where it stands."""
TICK_S = 0.5
PREPARE_S = 1_080.0
"""For the pull of an image, which a node gives 900 s, and a start; a node that is gone is noticed far earlier."""
FINISH_S = 120.0
COPY_S = 120.0
PROGRESS_S = 2.0
"""Between looks at what a node says of a start that takes long."""


class Placement:
    """Reserves places, has boxes made ready, and ends them."""

    def __init__(
        self,
        *,
        store: Store,
        reader: ReplyReader,
        dispatcher: Dispatcher,
        watch: Watch,
        turns: Turns,
        tools: str = "",
        volume: str = "",
        clock: Callable[[], float] = time.monotonic,
        resend_s: float = RESEND_S,
    ) -> None:
        self._store = store
        self._reader = reader
        self._dispatcher = dispatcher
        self._watch = watch
        self._tools = tools
        self._volume = volume
        self._clock = clock
        self._resend_s = resend_s
        self._turns = turns
        self._errands = Errands(store=store, reader=reader, watch=watch, clock=clock, resend_s=resend_s)
        self._listed: list[NodeView] = []
        self._listed_at = float("-inf")

    async def place(
        self,
        session: str,
        home: str | None = None,
        wanted: PlaceWanted = PlaceWanted(),  # noqa: B008 - frozen
        on_wait: Callable[[str], None] = lambda words: None,
    ) -> NodeLife:
        """Return the node that has a place for the session from now on; waits for its turn while all are taken.

        Args:
            session: The session.
            home: The node that has its box: asked first, and no other one as long as it may come back.
            wanted: What it asks of the place.
            on_wait: Is told now and then, in words, where it stands in the line.

        Broken off, it may leave a place taken: `withdraw` gives it back.

        Raises:
            NoBox: no node suits the session; or no node has been alive, or Redis has not answered, for a minute.
        """
        nobody_since, away, told_at = self._clock(), "", float("-inf")
        while True:
            pause_s = POLL_S
            try:
                ready = [view.life for view in await self._nodes() if view.takes_sessions or _is_at_home(view, home)]
                lives, unfit = self._suitable(ready, wanted)
                if home is not None and not await self._may_leave(home):
                    lives, nobody_since = [], self._clock()
                # A directory is nowhere else: its node, which may be restarted, is waited for as one that is alone is.
                wait_s = TOOLS_WAIT_S if wanted.bound_to is None else NODE_WAIT_S
                if ready and not lives and self._clock() - nobody_since > wait_s:
                    raise NoBox(unfit)
                if lives:
                    ranked = [(life, wanted.rank(life, home)) for life in lives]
                    turn = await self._turns.take(session, wanted, ranked)
                    if turn.node is not None:
                        self._watch.follow(turn.node.node, turn.node.incarnation)
                        return turn.node
                    nobody_since, pause_s = self._clock(), min(MAX_PAUSE_S, POLL_S * turn.position)
                    if self._clock() - told_at > TELL_S:
                        told_at = self._clock()
                        on_wait(turn.words)
                away = ""
            except RedisError as exc:
                away = str(exc)
                log.info("placement waits for Redis", extra={"error": away})
            if self._clock() - nobody_since > NODE_WAIT_S:
                raise NoBox(nobody(away, self._listed))
            await asyncio.sleep(pause_s)

    async def regain(
        self,
        session: str,
        node: NodeLife,
        wanted: PlaceWanted,
        stop: asyncio.Event,
        on_wait: Callable[[str], None] = lambda words: None,
    ) -> None:
        """Return once a session has its place on its node again, which that gave back while it was idle, or at `stop`.

        It waits for its turn like all others, and for that node alone, which may hold its workspace. Where the place
        cannot be had, what comes to the node says so.
        """
        own = replace(wanted, bound_to=node, is_nowhere_else=True)
        try:
            await first(asyncio.create_task(self.place(session, node.node, own, on_wait)), stop)
        except NoBox as exc:
            log.warning("a place is not had again", extra={"session_id": session, "error": str(exc)})

    async def _nodes(self) -> list[NodeView]:
        """Return the nodes as they were a moment ago: all who wait in this process ask."""
        if self._clock() - self._listed_at > LISTED_S:
            self._listed = await self._store.nodes()
            self._listed_at = self._clock()
        return self._listed

    def _suitable(self, ready: list[NodeLife], wanted: PlaceWanted) -> tuple[list[NodeLife], str]:
        """Return the nodes that may have such a session, and what is said where there is none."""
        here = [life for life in ready if not (life.volume and self._volume) or life.volume == self._volume]
        if not here:
            return [], other_volume(ready)
        lives = [life for life in here if self._tools in ("", life.tools)]
        if not lives:
            return [], other_tools(here)
        there = [life for life in lives if wanted.is_bound_to(life)]
        if not there and wanted.bound_to is not None:
            return [], directory_away(wanted.bound_to.node)
        pinned = [life for life in there if wanted.suits(life)]
        # Where nobody knows the profile, a node says so in its own words.
        return [life for life in pinned if wanted.profile in life.profiles] or pinned, other_labels(lives, wanted.pins)

    async def _may_leave(self, home: str) -> bool:
        """Return whether a node's box may be given up: the node is not known, has left, or was away for long enough."""
        view = await self._store.node(home)
        if view is None:
            return not self._watch.is_quiet
        self._watch.follow(home, view.life.incarnation)
        if view.is_leased and not any(one.life.node == home and one.is_leased for one in self._listed):
            # It has come back since the nodes were listed, and would be passed over.
            self._listed_at = float("-inf")
            return False
        # Its lease may have lapsed only now, and while it ends its box is there: two must not write one workspace.
        return view.life.state == "ready" if view.is_leased else self._watch.health(home).is_lost

    async def outlasts(
        self, node: str, stop: asyncio.Event, on_wait: Callable[[str], None] = lambda words: None
    ) -> bool:
        """Return whether a node is there, for as long as it may come back; False once its sessions may leave it.

        One that is ending takes nothing new: it is waited for until it has left, or is back, and `on_wait` is told so
        in words. True also where `stop` ends the wait, or Redis is away: whoever asks for a call finds that out.
        """
        if self._watch.health(node).is_ending:
            on_wait(f"The node {node} is ending: the session goes on at another one once it has, or when it is back.")
        while (health := self._watch.health(node)).incarnation is None or health.is_ending:
            if health.is_lost:
                return False
            if stop.is_set() or self._watch.away_s > keys.OUTAGE_S:
                break
            await asyncio.sleep(POLL_S)
        return True

    async def prepare(
        self,
        box: BoxOrder,
        node: NodeLife,
        on_progress: Callable[[str], None] = lambda words: None,
        *,
        wants_notes: bool = False,
    ) -> PrepareOutcome:
        """Return once the session's box stands.

        Args:
            box: The box.
            node: Where it is to stand.
            on_progress: Is told now and then what the node is at.
            wants_notes: Read what the workspace has for agents.

        Raises:
            NodeTrouble: the node was away, or failed; another try may have the box.
            NoSource: what it is to work on cannot be had.
            NoBox: it cannot be started; says why.
        """
        wait_s = PREPARE_S + (box.extras.setup_timeout_s if box.extras.makes_image else 0)
        order = PrepareOrder(box=box, node=node.node, incarnation=node.incarnation, wants_notes=wants_notes)
        watch = asyncio.create_task(self._tell_progress(box.session, on_progress), name=f"progress {box.session}")
        try:
            asked = await self._errands.ask(
                self._dispatcher.send_prepare, order, f"{box.session}/prepare", wait_s, kind=BEGIN
            )
        finally:
            await end(watch)
        outcome = outcome_of(PrepareOutcome, asked)
        if outcome is None:
            raise NodeTrouble(f"The node {node.node} did not say that the box is ready: {why_none(asked)}.")
        if outcome.error is not None:
            raise _refusal(outcome, outcome.error)
        return outcome

    async def _tell_progress(self, session: str, on_progress: Callable[[str], None]) -> None:
        told = None
        while True:
            await asyncio.sleep(PROGRESS_S)
            try:
                words = await self._store.progress(session)
            except RedisError:
                # Whoever waits for the box waits for Redis too.
                continue
            if words is not None and words != told:
                told = words
                on_progress(words)

    async def finish(
        self,
        box: BoxOrder,
        node: NodeLife,
        *,
        apply: bool,
        check: Check | None = None,
        keep_workspace: bool = False,
        away_s: float = keys.OUTAGE_S,
    ) -> FinishOutcome:
        """End the session's box and return what became of the workspace; never raises for it.

        Args:
            box: The session's box.
            node: Where it stands.
            apply: Put the changes of a private copy into its directory.
            check: Judges the workspace first.
            keep_workspace: Leave a private copy on the volume.
            away_s: How long a Redis that is away is waited for.
        """
        order = FinishOrder(
            box=box,
            node=node.node,
            incarnation=node.incarnation,
            apply=apply,
            keep_workspace=keep_workspace,
            check=check,
        )
        wait_s = FINISH_S + (check.timeout_s if check is not None else 0)
        asked = await self._errands.ask(self._dispatcher.send_finish, order, f"{box.session}/finish", wait_s, away_s)
        outcome = outcome_of(FinishOutcome, asked)
        if outcome is None:
            why = f"The node {node.node} did not say what became of the workspace: {why_none(asked)}."
            return FinishOutcome(session=box.session, error=why)
        return outcome

    async def any_node(self, preferred: str | None) -> NodeLife:
        """Return a node that lives, the preferred one if it does; for what needs no place. Waits for one to come.

        Raises:
            NoBox: there has been none for a minute.
        """
        since = self._clock()
        while self._clock() - since <= NODE_WAIT_S:
            lives = [view.life for view in await self._nodes() if view.is_ready]
            if lives:
                return next((life for life in lives if life.node == preferred), lives[0])
            await asyncio.sleep(POLL_S)
        raise NoBox(nobody("", self._listed))

    async def copy(self, box: BoxOrder, node: NodeLife, target: str, target_dir: Path) -> None:
        """Return once a node has copied a session's workspace, as it is now, into the directory of another one.

        Args:
            box: The session's box, or the one that it had last.
            node: Where it stands; any node, where it has ended.
            target: The session that gets the copy.
            target_dir: Its directory.

        Raises:
            NoBox: it cannot be had; says why.
        """
        order = CopyOrder(
            box=box, node=node.node, incarnation=node.incarnation, target=target, target_dir=str(target_dir)
        )
        self._watch.follow(node.node, node.incarnation)
        asked = await self._errands.ask(self._dispatcher.send_copy, order, f"{target}/copy", COPY_S, kind=BEGIN)
        outcome = outcome_of(CopyOutcome, asked)
        if outcome is None:
            raise NoBox(f"The node {node.node} did not say that the workspace was copied: {why_none(asked)}.")
        if outcome.error is not None:
            raise NoBox(outcome.error)

    async def until_answered(self, ask: Callable[[], Awaitable[_T]], away_s: float) -> _T:
        """Return what Redis answers, asked again while it is away.

        Raises:
            RedisLost: it has been away for so long, or refuses.
        """
        if self._watch.away_s > away_s:
            raise RedisLost(f"Redis has been away for {self._watch.away_s:.0f} s")
        return await patiently(ask, asyncio.Event(), away_s)

    async def withdraw(self, session: str, node: str | None = None, *, away_s: float) -> bool:
        """Let none of the session's calls start, and give its place back: on any node where none is named.

        False where Redis was away for so long: neither is done.
        """

        self._turns.let_go(session)
        try:
            await self.until_answered(partial(self.give_up, session, node), away_s)
        except RedisLost as exc:
            log.warning("the place is not given back yet", extra={"session_id": session, "error": str(exc)})
            return False
        return True

    async def give_up(self, session: str, node: str | None = None, generation: int | None = None) -> None:
        """Do the same at once; with a generation not to a session that has begun anew since.

        Raises:
            RedisError: Redis does not answer.
        """
        names = [node] if node is not None else [view.life.node for view in await self._store.nodes()]
        if await self._store.close_session(session, names, generation):
            await self._turns.leave(session)


def _is_at_home(view: NodeView, home: str | None) -> bool:
    """Whether it is the node with the session's box, which stays there also when the node is drained."""
    return view.life.node == home and view.is_ready


def _refusal(outcome: PrepareOutcome, words: str) -> NoBox:
    if outcome.is_passing:
        return NodeTrouble(words)
    return NoSource(words) if outcome.is_own_fault else NoBox(words)
