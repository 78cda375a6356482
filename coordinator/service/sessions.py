"""Many sessions in one process: API → admission → **sessions** (line, runner) → journal.

The volume is the store of record: what is kept here can be made anew from it.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.ending import end
from coordinator.endpoint.model import ModelClient
from coordinator.errors import ConfigError, SandhogError, TranscriptError
from coordinator.service.admission import Admission
from coordinator.service.entries import Entry, Follower, Index
from coordinator.service.facts import Status
from coordinator.service.journal import POLL_S, EventId, Journal
from coordinator.service.journal import Line as EventLine
from coordinator.service.line import Line
from coordinator.service.principals import Principal
from coordinator.service.records import KeyedSession, SessionRecord, claim_key, release_key, write_record
from coordinator.service.refusals import Code, Refused, no_session
from coordinator.service.tokens import FIRST_ALLOWANCE, Tokens
from coordinator.service.views import SessionView, view_of
from coordinator.service.wanted import NewSession
from coordinator.session.approvals import Approver, Elsewhere, Never
from coordinator.session.events import TextDelta
from coordinator.session.loop import Ending
from coordinator.session.request import LOCAL, SessionRequest, new_session_id
from coordinator.session.runner import SessionRunner

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

HOUR_S = 3600.0
RESCAN_S = 2.0
"""A list of sessions is at most so old in what other processes made."""


@dataclass(eq=False)
class Held:
    """A session that waits or runs here."""

    entry: Entry
    request: SessionRequest
    model: ModelClient
    principal: Principal
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    runner: SessionRunner | None = None
    task: "asyncio.Task[None] | None" = None


@dataclass(frozen=True)
class Filter:
    """Which sessions are asked for; None takes all."""

    status: frozenset[Status] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    principal: str | None = None
    since: datetime | None = None


class Sessions:
    """The service. Use `async with`: sessions that still run at its end are left for another coordinator.

    Args:
        cluster: What they run on.
        admission: What may be had.
        models: The model of a session by name; None is the server's own.
        tokens: The principals, for sessions that waited when an earlier process ended.
        max_running: How many run at once.
        hidden: Values that must never reach a transcript.
    """

    def __init__(
        self,
        cluster: Cluster,
        admission: Admission,
        models: Callable[[str | None], ModelClient],
        *,
        tokens: Tokens,
        max_running: int,
        hidden: tuple[str, ...] = (),
    ) -> None:
        self.cluster = cluster
        self.index = Index(cluster.state_dir)
        self._admission = admission
        self._models = models
        self._tokens = tokens
        self.archives = admission.archives
        self._hidden = hidden
        self._line = Line(max_running)
        self._held: dict[str, Held] = {}
        self._created: dict[str, deque[float]] = {}
        self._making: dict[tuple[str, str], asyncio.Lock] = {}
        self._scanned_at = float("-inf")
        self.is_draining = False
        self.is_closing = False

    async def __aenter__(self) -> "Sessions":
        await asyncio.to_thread(self.index.load)
        for entry in self.index:
            if entry.has_never_begun:
                await self._take_up(entry)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
        for held in list(self._held.values()):
            if held.runner is not None:
                held.runner.abandon(Ending("failed", "the server ended", is_lost=True), finish_s=0.0)
        await end(*[held.task for held in self._held.values() if held.task is not None])

    def close(self) -> None:
        """Begin nothing any more, and let all who follow go."""
        self.is_draining = self.is_closing = True
        for entry in self.index:
            entry.wake()

    async def create(self, wanted: NewSession, principal: Principal) -> tuple[Entry, bool]:
        """Return the session, and whether it is a new one.

        Raises:
            Refused: it may not be had, or its idempotency key stands for another one.
        """
        if self.is_draining:
            raise Refused(Code.UNAVAILABLE, "The server is ending.", "Ask again.", retry_after_s=5)
        request = await asyncio.to_thread(self._admission.admit, wanted, principal)
        key = wanted.idempotency_key
        if key is None:
            return await self._make(new_session_id(), wanted, request, principal), True
        # Two requests with one key that come at once: the second waits for what the first makes.
        lock = self._making.setdefault((principal.name, key), asyncio.Lock())
        try:
            async with lock:
                return await self._make_once(key, wanted, request, principal)
        finally:
            if not lock.locked():
                self._making.pop((principal.name, key), None)

    async def _make_once(
        self, key: str, wanted: NewSession, request: SessionRequest, principal: Principal
    ) -> tuple[Entry, bool]:
        salt, state_dir = secrets.token_hex(8), self.cluster.state_dir
        ours = KeyedSession(session_id=new_session_id(), salt=salt, digest=wanted.digest(salt))
        keyed = await on_volume(claim_key, state_dir, principal.name, key, ours)
        if keyed.digest != wanted.digest(keyed.salt):
            words = f"The idempotency key {key!r} stands for session {keyed.session_id}, which was asked for otherwise."
            raise Refused(Code.CONFLICT, words, "Send the same body, or another key.")
        known = await asyncio.to_thread(self.index.get, keyed.session_id)
        if known is not None:
            return known, False
        try:
            return await self._make(keyed.session_id, wanted, request, principal), True
        except Refused:
            # Nothing was made: the key must not stand in the way of the next try.
            await on_volume(release_key, state_dir, principal.name, key)
            raise

    async def _make(self, session_id: str, wanted: NewSession, request: SessionRequest, principal: Principal) -> Entry:
        self._within_quota(principal)
        try:
            model = self._models(wanted.model)
        except ConfigError as exc:
            raise Refused(Code.INVALID, str(exc)) from exc
        webhook = wanted.webhook
        record = SessionRecord(
            session_id=session_id,
            principal=principal.name,
            created_at=datetime.now(UTC),
            labels=wanted.labels,
            loop=wanted.loop,
            wanted=wanted.model_copy(update={"webhook": None}),
            webhook=webhook,
        )
        entry = Entry(record, self.cluster.state_dir / "sessions" / session_id, is_ours=True)
        await on_volume(_keep, entry)
        self._created.setdefault(principal.name, deque()).append(asyncio.get_running_loop().time())
        self._hold(Held(entry, request, model, principal))
        return entry

    async def _take_up(self, entry: Entry) -> None:
        """Let a session wait here that was waiting when the process ended that had it."""
        record = entry.record
        principal = next((one for one in self._tokens.principals() if one.name == record.principal), None)
        try:
            if record.wanted is None or (principal is None and record.principal != LOCAL):
                raise Refused(Code.NOT_FOUND, f"its principal {record.principal} is no more")
            principal = principal or Principal(name=LOCAL, allowance=FIRST_ALLOWANCE)
            request = await asyncio.to_thread(self._admission.admit, record.wanted, principal)
            model = self._models(record.wanted.model)
        except SandhogError as exc:
            entry.facts.fail(f"it waited when the server ended, and may not begin now: {exc}")
            return
        entry.is_ours = True
        self._hold(Held(entry, request, model, principal))

    def _hold(self, held: Held) -> None:
        self.index.add(held.entry)
        self._held[held.entry.session_id] = held
        self._line.join(held.entry.session_id, held.principal.name)
        self._start_next()

    def _within_quota(self, principal: Principal) -> None:
        quota, name = principal.allowance.quota, principal.name
        times, now = self._created.setdefault(name, deque()), asyncio.get_running_loop().time()
        while times and times[0] <= now - HOUR_S:
            times.popleft()
        if quota.created_per_hour is not None and len(times) >= quota.created_per_hour:
            words = f"{name} has created {len(times)} sessions within an hour, as many as it may."
            raise Refused(Code.TOO_MANY, words, "Wait.", retry_after_s=times[0] + HOUR_S - now)
        waits = quota.running is not None and self._line.running(name) >= quota.running
        if waits and quota.queued is not None and self._line.waiting(name) >= quota.queued:
            words = f"{name} has {self._line.running(name)} sessions running and {self._line.waiting(name)} waiting."
            raise Refused(Code.TOO_MANY, words, "Wait for one to end, or cancel one.", retry_after_s=10)

    def _start_next(self) -> None:
        if self.is_draining:
            return

        def may_run(principal: str, running: int) -> bool:
            most = next(one.principal for one in self._held.values() if one.principal.name == principal)
            quota = most.allowance.quota.running
            return quota is None or running < quota

        for session in self._line.next(may_run):
            held = self._held[session]
            held.task = asyncio.create_task(self._run(held), name=f"session {session}")

    async def _run(self, held: Held) -> None:
        entry = held.entry
        try:
            held.runner = await asyncio.to_thread(self._runner, held)
            await held.runner.run(held.cancelled)
        except (SandhogError, OSError) as exc:
            # Its transcript cannot be made, or another process has the session.
            log.warning("a session could not be begun", extra={"session_id": entry.session_id, "error": str(exc)})
            entry.facts.fail(str(exc))
        finally:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(entry.let_go)
            self._held.pop(entry.session_id, None)
            self._line.ended(entry.session_id)
            entry.wake()
            self._start_next()

    def _runner(self, held: Held) -> SessionRunner:
        wanted = held.entry.record.wanted
        approver: Approver = Never() if wanted is not None and wanted.approve == "never" else Elsewhere()
        entry = held.entry
        runner = SessionRunner(
            held.request,
            cluster=self.cluster,
            model=held.model,
            approver=approver,
            sinks=[entry],
            secrets=self._hidden,
            session_id=entry.session_id,
        )
        # The values of variables were kept for a session that waits; one that has begun has them elsewhere.
        entry.record = entry.record.without_secrets()
        write_record(entry.directory, entry.record)
        return runner

    async def get(self, session_id: str, principal: Principal) -> Entry:
        """Return a session that the principal may know of.

        Raises:
            Refused: there is none.
        """
        entry = await asyncio.to_thread(self.index.get, session_id)
        if entry is None or not principal.sees(entry.record.principal):
            raise no_session(session_id)
        return entry

    async def list(
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

    def held(self, entry: Entry) -> Held | None:
        """Return what this process has of a session that waits or runs here; None of any other."""
        return self._held.get(entry.session_id)

    async def cancel(self, entry: Entry) -> None:
        """End a session once each of its calls has its answer; one that has ended stays as it is.

        Raises:
            Refused: another process runs it.
        """
        held = self._held.get(entry.session_id)
        if held is not None:
            held.cancelled.set()
            if self._line.leave(entry.session_id):
                # It begins at once, only to end: its transcript says so.
                held.task = asyncio.create_task(self._run(held), name=f"session {entry.session_id}")
        elif not entry.facts.has_ended:
            words = f"Session {entry.session_id} is run by another process."
            raise Refused(Code.CONFLICT, words, "Ask that one.")

    async def events(self, entry: Entry, after: EventId) -> "AsyncIterator[EventLine | TextDelta | None]":
        """Yield a session's kept events from one on, with pieces of text between them as they come; None for a pause.

        It ends when the session has ended, or this process is about to.
        """
        follower = Follower()
        entry.followers.add(follower)
        journal = Journal(entry.directory, after)
        try:
            while True:
                follower.wake.clear()
                while not follower.deltas.empty():
                    yield follower.deltas.get_nowait()
                # Asked before the reading: what was kept before the end is read below.
                is_over = self._is_over(entry)
                lines: list[EventLine] = []
                if follower.is_behind or is_over or not entry.is_ours:
                    follower.is_behind = False
                    lines = await asyncio.to_thread(_read_on, journal, entry)
                for line in lines:
                    yield line
                follower.is_behind |= bool(lines)
                if not lines and is_over:
                    return
                if not lines and not await _woken(follower.wake):
                    yield None
        finally:
            entry.followers.discard(follower)

    async def wait(self, entry: Entry, within_s: float) -> bool:
        """Return once a session has ended or the time is over; whether it has."""
        follower = Follower()
        entry.followers.add(follower)
        try:
            async with asyncio.timeout(within_s):
                while not self._is_over(entry):
                    follower.wake.clear()
                    if not await _woken(follower.wake) and not entry.is_ours:
                        await asyncio.to_thread(entry.refresh)
        except TimeoutError:
            pass
        finally:
            entry.followers.discard(follower)
        return entry.facts.has_ended

    async def has_read_all(self, entry: Entry, after: EventId) -> bool:
        """Return whether a session has ended and nothing was kept behind an event."""
        if not self._is_over(entry) or self.is_closing:
            return False
        return not await on_volume(Journal(entry.directory, after).read)

    def view(self, entry: Entry) -> SessionView:
        """Return what is shown of a session."""
        return view_of(entry, self._line.position(entry.session_id))

    def load_of(self, principal: str) -> tuple[int, int]:
        """Return how many of a principal's sessions run and wait here."""
        return self._line.running(principal), self._line.waiting(principal)

    def _is_over(self, entry: Entry) -> bool:
        return self.is_closing or (entry.facts.has_ended and entry.session_id not in self._held)

    async def ready(self) -> str | None:
        """Return why no session could be run now; None when all is well."""
        if self.is_draining:
            return "the server is ending"
        try:
            nodes = await self.cluster.store.nodes()
        except (RedisError, OSError, TimeoutError) as exc:
            return f"Redis does not answer: {exc}"
        if not any(view.is_leased and view.life.state == "ready" for view in nodes):
            return "no worker is alive"
        return None

    async def drain(self, grace_s: float) -> int:
        """Begin no session any more and wait for those that run; return how many still do after the time."""
        self.is_draining = True
        running = [held.task for held in self._held.values() if held.task is not None]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        return sum(1 for task in running if not task.done())


def _fits(entry: Entry, principal: Principal, wanted: Filter) -> bool:
    record = entry.record
    owner = wanted.principal or principal.name
    if not principal.sees(record.principal) or (owner not in ("*", record.principal)):
        return False
    if wanted.status is not None and entry.facts.status not in wanted.status:
        return False
    if wanted.since is not None and record.created_at < wanted.since:
        return False
    return all(record.labels.get(name) == value for name, value in wanted.labels.items())


def _keep(entry: Entry) -> None:
    entry.directory.mkdir(parents=True)
    write_record(entry.directory, entry.record)


def _read_on(journal: Journal, entry: Entry) -> list[EventLine]:
    entry.refresh()
    return journal.read()


async def _woken(wake: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(wake.wait(), POLL_S)
    except TimeoutError:
        return False
    return True


async def on_volume(work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Return what a function says that reads or writes the volume, outside of the event loop.

    Raises:
        Refused: the volume does not take it.
    """
    try:
        return await asyncio.to_thread(work, *arguments, **named)
    except (TranscriptError, OSError) as exc:
        log.error("the volume cannot be used", extra={"error": str(exc)})
        raise Refused(Code.UNAVAILABLE, "The server's volume cannot be used now.", retry_after_s=10) from exc
