"""Many sessions in one process: API → admission → **sessions** (line, runner) → journal.

The volume is the store of record: what is kept here can be made anew from it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.turns import Turn
from coordinator.cluster.wishes import Wish
from coordinator.errors import ConfigError, SandhogError, TranscriptError
from coordinator.service import cancelling
from coordinator.service.admission import Admission, below_root
from coordinator.service.afar import Afar
from coordinator.service.entries import Entry, Index
from coordinator.service.facts import Status
from coordinator.service.floor import Floor
from coordinator.service.following import demand_reached, follow, wait_for
from coordinator.service.forks import Forks
from coordinator.service.journal import EventId, Journal
from coordinator.service.journal import Line as EventLine
from coordinator.service.kept import copy_dir
from coordinator.service.making import Maker
from coordinator.service.models import Models
from coordinator.service.posting import AskedStep, Posting, StepAnswers
from coordinator.service.principals import Principal
from coordinator.service.refusals import Code, Refused, no_session
from coordinator.service.tokens import Tokens
from coordinator.service.unheard import Unheard
from coordinator.service.views import SessionView, view_of
from coordinator.service.volume import on_volume, volume_away
from coordinator.service.wanted import NewFork, NewSession
from coordinator.service.webhooks import Webhooks
from coordinator.session.ceilings import in_both, usable_tools
from coordinator.session.limits import Limits
from coordinator.session.step_events import TextDelta
from coordinator.session.subagents import without_tasks

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 1024 * 1024
LINE_S = 1.0
"""How long Redis is asked where sessions stand in the cluster's line."""
RESCAN_S = 2.0
"""A list of sessions is at most so old in what other processes made."""


@dataclass(frozen=True)
class Filter:
    """Which sessions are asked for; None takes all."""

    status: frozenset[Status] | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    """Names and values, all of which it has."""
    principal: str | None = None
    since: datetime | None = None


class Sessions:
    """The service. Use `async with`: sessions that still run at its end are left for another coordinator.

    Args:
        cluster: What they run on.
        admission: What may be had.
        models: The clients of the server's endpoint.
        tokens: The principals, for sessions that waited when an earlier process ended.
        max_running: How many run at once.
        max_file_bytes: Size of the largest file that is read out of a workspace.
        webhooks: Who is told of ends; None reaches public addresses only.
        hidden: Values that must never reach a transcript.
    """

    def __init__(
        self,
        cluster: Cluster,
        admission: Admission,
        models: Models,
        *,
        tokens: Tokens,
        max_running: int,
        max_file_bytes: int = MAX_FILE_BYTES,
        webhooks: Webhooks | None = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        webhooks = webhooks or Webhooks()
        self.cluster = cluster
        self.max_file_bytes = max_file_bytes
        self.archives = admission.archives
        self.index = Index(cluster.state_dir)
        self._admission = admission
        self._webhooks = webhooks
        self._floor = Floor(
            cluster,
            self.index,
            admission,
            models,
            tokens=tokens,
            max_running=max_running,
            hidden=hidden,
            on_end=webhooks.tell,
        )
        self._maker = Maker(cluster, admission, self.index, self._floor)
        self._afar = Afar(cluster)
        self._unheard = Unheard(cluster, self.index, self._floor)
        self._forks = Forks(cluster, admission, self._floor, self._maker, self._afar)
        self._posting = Posting(self._afar, self._floor.held, lambda: self._is_closing)
        self._scanned_at = float("-inf")
        self._is_closing = False

    @property
    def floor(self) -> Floor:
        """Where its sessions run, for those who watch them."""
        return self._floor

    async def __aenter__(self) -> "Sessions":
        await asyncio.to_thread(self.index.load)
        for entry in self.index:
            if entry.waits_for_nobody:
                await self._floor.take_up(entry)
            self._webhooks.tell(entry)
        await self._floor.__aenter__()
        await self._unheard.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
        await self._unheard.__aexit__()
        await self._floor.__aexit__()
        await self._webhooks.__aexit__()

    def close(self) -> None:
        """Begin nothing any more, and let all who follow go."""
        self._floor.is_draining = self._is_closing = True
        for entry in self.index:
            entry.wake()

    async def create(self, wanted: NewSession, principal: Principal) -> tuple[Entry, bool]:
        """Return the session, and whether it is a new one.

        Raises:
            Refused: it may not be had, or its idempotency key stands for another one.
        """
        return await self._maker.create(wanted, principal)

    async def fork(self, parent: Entry, wanted: NewFork, principal: Principal) -> tuple[Entry, bool]:
        """Return a fork of a session, see `Forks`."""
        return await self._forks.fork(parent, wanted, principal)

    async def get(self, session_id: str, principal: Principal) -> Entry:
        """Return a session that the principal may know of.

        Raises:
            Refused: there is none.
        """
        entry = await asyncio.to_thread(self.index.get, session_id)
        if entry is None or not principal.sees(entry.record.principal):
            raise no_session(session_id)
        return entry

    async def page(
        self, principal: Principal, wanted: Filter, *, limit: int, after: str | None
    ) -> tuple[list[Entry], str | None]:
        """Return sessions that the principal may know of, the newest first, and where the next page begins.

        Args:
            principal: Who asks.
            wanted: Which ones.
            limit: How many at most.
            after: The last session of the page before; None for the first page.
        """
        now = asyncio.get_running_loop().time()
        if now - self._scanned_at > RESCAN_S:
            await asyncio.to_thread(self.index.load)
            self._scanned_at = now
        found: list[Entry] = []
        for entry in self.index.newest_first():
            if (after is None or entry.session_id < after) and _fits(entry, principal, wanted):
                if len(found) == limit:
                    return found, found[-1].session_id
                found.append(entry)
        return found, None

    async def cancel(self, entry: Entry) -> None:
        """End a session once each of its calls has its answer; one that has ended stays as it is.

        Raises:
            Refused: nobody runs it now.
        """
        held = self._floor.held(entry.session_id)
        if held is not None:
            await self._floor.cancel(held)
        elif not entry.facts.has_ended:
            await self._afar.ask(entry, Wish(kind="cancel"))

    async def cancel_calls(self, entry: Entry, name: str) -> dict[str, bool]:
        """End calls of a session that runs, see `cancelling.cancel_calls`."""
        return await cancelling.cancel_calls(entry, name, self._floor.held(entry.session_id), self._afar)

    async def say(self, entry: Entry, text: str) -> None:
        """Hand a person's message to a session: to one that runs behind what it does, to one that has ended anew.

        Raises:
            Refused: it cannot take it.
        """
        held = self._floor.held(entry.session_id)
        if held is not None:
            await held.messages.keep(held.say(text))
            return
        self._demand_model(entry)
        if not entry.facts.has_ended and not await self._is_left_behind(entry, Wish(kind="message", text=text)):
            return
        self._floor.demand_open()
        try:
            # Whoever says it, the session counts as its owner's.
            owner = self._floor.principal(entry.record.principal)
            async with self._floor.quotas.room(owner, entry.session_id, is_new=False):
                await self._floor.go_on(entry, text)
        except TranscriptError as exc:
            raise volume_away(exc) from exc
        except SandhogError as exc:
            raise exc if isinstance(exc, Refused) else Refused(Code.CONFLICT, str(exc)) from exc

    async def limit(self, entry: Entry, given: Limits) -> Limits:
        """Put limits in place of those of a session that waits or runs; return what it has now.

        Args:
            entry: The session.
            given: Those fields that were set count.

        Raises:
            Refused: it has ended, or they cannot be kept.
        """
        held = self._floor.held(entry.session_id)
        said = {name: getattr(given, name) for name in given.model_fields_set}
        if held is None:
            if entry.facts.has_ended:
                raise _over(entry)
            told = await self._afar.ask(entry, Wish(kind="limits", limits=said))
            # Where its owner has not answered yet: what they will be.
            kept = entry.facts.limits or (entry.record.wanted.limits if entry.record.wanted else Limits())
            return Limits.model_validate(told.result) if told is not None else kept.model_copy(update=said)
        try:
            held.limit(held.limits.model_copy(update=said))
        except ConfigError as exc:
            raise Refused(Code.INVALID, str(exc)) from exc
        return held.limits

    async def step(self, entry: Entry, asked: AskedStep, wait_s: float) -> StepAnswers:
        """Return the answers of a caller's step, see `Posting.answers`."""
        return await self._posting.answers(entry, asked, wait_s)

    def workspace(self, entry: Entry) -> Path:
        """Return where a session's workspace lies, if it is there."""
        wanted = entry.record.wanted
        if wanted is not None and wanted.bind and wanted.workspace is not None:
            return below_root(wanted.workspace, self._admission.roots, None)
        return copy_dir(entry.directory)

    def tools_of(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the schemas of the tools that a session may use.

        Raises:
            Refused: its principal is no more.
        """
        wanted, held = entry.record.wanted, self._floor.held(entry.session_id)
        if held is not None:
            names = held.request.ceiling.tools
        else:
            # As whoever has it, or goes on with it, sees it.
            ceiling = self._floor.principal(entry.record.principal).allowance.ceiling
            names = in_both(wanted.tools if wanted is not None else None, ceiling.tools)
        read_only = wanted is not None and wanted.read_only
        usable = usable_tools(self.cluster.registry, names, is_read_only=read_only)
        return (without_tasks(usable) if entry.record.loop == "none" else usable).function_schemas()

    async def finish(self, entry: Entry, text: str) -> None:
        """Let a session complete that waits for a message or for calls.

        Raises:
            Refused: a step is under way.
        """
        held = self._floor.held(entry.session_id)
        if held is not None:
            held.finish(text)
        elif not entry.facts.has_ended:
            await self._afar.ask(entry, Wish(kind="finish", text=text))

    def events(
        self, entry: Entry, after: EventId, directory: Path | None = None
    ) -> "AsyncIterator[EventLine | TextDelta | None]":
        """Yield a session's events, see `follow`; it ends when the session has, or this process is about to."""
        return follow(entry, after, lambda: self._is_over(entry), directory)

    async def wait(self, entry: Entry, within_s: float) -> bool:
        """Return once a session has ended or waits for a message, or the time is over; whether it has."""
        return await wait_for(entry, lambda: self._is_over(entry) or entry.facts.state == "idle", within_s)

    async def has_read_all(self, entry: Entry, after: EventId) -> bool:
        """Return whether a session has ended and nothing was kept behind an event.

        Raises:
            Refused: it has not got as far as that event.
        """
        await demand_reached(entry, after)
        if not self._is_over(entry) or self._is_closing:
            return False
        return not await on_volume(Journal(entry.directory, after).read)

    def view(self, entry: Entry, turn: Turn | None = None) -> SessionView:
        """Return what is shown of a session; `turn` is its place in the cluster's line."""
        return view_of(entry, self._floor.line.position(entry.session_id), turn)

    async def views(self, entries: Sequence[Entry]) -> list[SessionView]:
        """Return what is shown of sessions, with their places in the cluster's line as far as Redis tells them soon."""
        waiting = {
            entry.session_id: entry.record.principal
            for entry in entries
            # Also one that had a place: it gave that back while it was idle, and waits for it like all others.
            if entry.facts.state == "running"
        }
        turns: dict[str, Turn] = {}
        if waiting:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(LINE_S):
                    turns = await self.cluster.turns.look(waiting)
        return [self.view(entry, turns.get(entry.session_id)) for entry in entries]

    def load_of(self, principal: str) -> tuple[int, int]:
        """Return how many of a principal's sessions run and wait here."""
        return self._floor.line.running(principal), self._floor.line.waiting(principal)

    async def _is_left_behind(self, entry: Entry, message: Wish) -> bool:
        """Hand a message to whoever has a session; return whether they ended it before they could take the message."""
        if await self._afar.ask(entry, message) is not None:
            return False
        await asyncio.to_thread(entry.refresh)
        return entry.facts.has_ended and await self.cluster.wishes.take_back(entry.session_id, message)

    def _demand_model(self, entry: Entry) -> None:
        if entry.record.loop == "none":
            raise Refused(Code.CONFLICT, "A session without a model takes no messages.", "POST …/tool_calls.")

    def _is_over(self, entry: Entry) -> bool:
        return self._is_closing or (entry.facts.has_ended and self._floor.held(entry.session_id) is None)

    async def ready(self) -> str | None:
        """Return why no session could be run now; None when all is well."""
        if self._floor.is_draining:
            return "the server is ending"
        try:
            nodes = await self.cluster.store.nodes()
        except (RedisError, OSError, TimeoutError) as exc:
            return f"Redis does not answer: {exc}"
        if not any(view.is_leased and view.life.state == "ready" for view in nodes):
            return "no worker is alive"
        return None

    async def drain(self, grace_s: float) -> tuple[int, int]:
        """Begin no session any more and wait until none is at work, or the time is over, see `Floor.drain`."""
        return await self._floor.drain(grace_s)


def _over(entry: Entry) -> Refused:
    return Refused(Code.CONFLICT, f"Session {entry.session_id} has ended.", "POST …/message lets it go on.")


def _fits(entry: Entry, principal: Principal, wanted: Filter) -> bool:
    record = entry.record
    owner = wanted.principal or principal.name
    if not principal.sees(record.principal) or (owner not in ("*", record.principal)):
        return False
    if wanted.status is not None and entry.facts.status not in wanted.status:
        return False
    if wanted.since is not None and record.created_at < wanted.since:
        return False
    return wanted.labels <= record.labels.items()
