"""Where sessions run in this process: sessions → line → **floor** → held. Also those of coordinators that died."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from coordinator.cluster.hearing import Hearing
from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Wish
from coordinator.ending import end
from coordinator.endpoint.limiter import EndpointLimiter
from coordinator.endpoint.model import ModelClient
from coordinator.errors import ConfigError, SandhogError, TranscriptError
from coordinator.service.admission import Admission
from coordinator.service.adopted import run_adopted
from coordinator.service.carried import forget_carried
from coordinator.service.entries import Entry, Index
from coordinator.service.granting import grant
from coordinator.service.held import Held, Shared
from coordinator.service.line import Line
from coordinator.service.messages import Messages, forget_messages, heard_in, kept_messages
from coordinator.service.models import Models
from coordinator.service.principals import Principal
from coordinator.service.quotas import Quotas
from coordinator.service.records import write_record
from coordinator.service.refusals import Code, Refused
from coordinator.service.tokens import Tokens
from coordinator.service.wanted import NewSession
from coordinator.session.ceilings import in_both
from coordinator.session.events import EventSink
from coordinator.session.request import SessionRequest
from coordinator.session.resume import Resumable, check, find
from coordinator.session.takeover import Adopted, TakeoverWatch

log = logging.getLogger(__name__)

KEEP_S = 1.0
"""How long a cancel is held up by a Redis that does not answer; it is done in any case."""
LOOK_S = 0.2
"""While it drains, how often sessions are looked at that may have come to wait for somebody."""


class Floor:
    """Runs sessions, as many at once as it may. Use `async with`: those that still run at its end are left.

    Args:
        cluster: What they run on.
        index: All sessions that are known.
        admission: What may be had.
        models: The clients of the server's endpoint.
        tokens: The principals.
        max_running: How many run at once.
        hidden: Values that must never reach a transcript.
        on_end: Told of each session that has stopped running here, ended or not.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: Index,
        admission: Admission,
        models: Models,
        *,
        tokens: Tokens,
        max_running: int,
        hidden: tuple[str, ...],
        on_end: Callable[[Entry], None],
    ) -> None:
        self.line = Line(max_running)
        self.is_draining = False
        self._cluster = cluster
        self._index = index
        self._admission = admission
        self._models = models
        self._tokens = tokens
        self.watchers: list[Callable[[Entry], EventSink]] = []
        """Each gives a session that begins or goes on here a sink of its own."""
        self._shared = Shared(cluster, hidden, self.watchers)
        self._on_end = on_end
        self._held: dict[str, Held] = {}
        self.quotas = Quotas(cluster.counts, self._unended)
        self._hearing = Hearing(
            cluster.wishes,
            lambda session, wish: grant(session, wish, self.held(session), self.cancel),
            self._is_coming,
        )
        self._takeover = TakeoverWatch(cluster, self._adopt, lambda: 0 if self.is_draining else self.line.room)

    async def __aenter__(self) -> "Floor":
        self._cluster.ownership.on_wishes = self._hearing.look
        self._cluster.ownership.on_hearing_again = self._look_at_all
        await self.quotas.__aenter__()
        await self._takeover.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.is_draining = True
        await self._takeover.__aexit__()
        await self._hearing.close()
        for held in list(self._held.values()):
            held.leave()
        await end(*self._tasks)
        await self.quotas.__aexit__()

    def demand_open(self) -> None:
        """Return if sessions may begin.

        Raises:
            Refused: the server is ending.
        """
        if self.is_draining:
            raise Refused(Code.UNAVAILABLE, "The server is ending.", "Ask again.", retry_after_s=5)

    @property
    def limiter(self) -> EndpointLimiter:
        """The places at the server's endpoint."""
        return self._models.limiter

    def statuses(self) -> Counter[str]:
        """Return how many sessions that wait or run here have which status."""
        return Counter(held.entry.facts.status for held in self._held.values())

    def held(self, session_id: str) -> Held | None:
        """Return what this process has of a session that waits or runs here; None of any other."""
        return self._held.get(session_id)

    async def begin(
        self,
        entry: Entry,
        wanted: NewSession,
        request: SessionRequest,
        principal: Principal,
        messages: Messages | None = None,
    ) -> None:
        """Let a new session wait for its turn; `messages` is what was said to it before, at an earlier process.

        Raises:
            Refused: it has no model.
        """
        held = Held(entry, request, self.model_of(wanted.loop, wanted.model), principal)
        held.messages = messages or held.messages
        entry.is_ours = True
        self._hold(held)

    async def take_up(self, entry: Entry) -> None:
        """Let a session wait that was waiting when its process ended."""
        wanted = entry.record.wanted
        assert wanted is not None
        try:
            if entry.record.forked_from is not None:
                await self.go_on(entry, wanted.prompt, is_again=True)
                return
            await self._sign(entry)
            principal = self.principal(entry.record.principal)
            request = await asyncio.to_thread(self._admission.admit, wanted, principal)
            messages = await asyncio.to_thread(kept_messages, entry.directory, 0)
            await self.begin(entry, wanted, request, principal, messages)
        except SandhogError as exc:
            entry.facts.fail(f"it waited when the server ended, and may not begin now: {exc}")

    async def go_on(self, entry: Entry, text: str, *, is_again: bool = False) -> None:
        """Let a session that has ended wait for its turn to hear a message.

        Args:
            entry: The session.
            text: The message.
            is_again: It waited for this one before: where messages are kept, it is the first of them.

        Raises:
            SandhogError: it cannot go on.
        """
        found = await asyncio.to_thread(find, self._cluster.state_dir, entry.session_id)
        held = await self._continued(entry, found)
        if entry.record.wanted is not None:
            model = held.model.settings.model
            self._admission.admit_again(entry.record.wanted, held.request, model, held.principal)
        check(found, held.request, message=text)
        # What was wanted of it before it ended came too late.
        await self._cluster.wishes.drop(entry.session_id)
        # Before a message is kept, which whoever finds it lets be heard where nobody has the session.
        await self._sign(entry)
        if not (is_again and held.messages):
            await held.messages.keep(held.messages.add(text))
        faster = self._held.get(entry.session_id)
        if faster is None:
            entry.is_ours = True
            self._hold(held)
        elif not is_again:
            # Another message lets it go on already.
            await faster.messages.keep(faster.say(text))

    async def _sign(self, entry: Entry) -> None:
        """Write down that a session waits in this process' line."""
        entry.record = entry.record.model_copy(update={"coordinator": self._cluster.ownership.coordinator})
        await asyncio.to_thread(write_record, entry.directory, entry.record)

    def cancel(self, held: Held) -> Coroutine[Any, Any, None]:
        """End a session; one that waits begins at once, only to end: its transcript says so.

        Returns:
            To be awaited: leaves its next owner the same to do, should this one be gone before the session has ended.
        """
        held.cancel()
        if self.line.leave(held.entry.session_id):
            self._start(held)
        return self._keep_cancel(held, Wish(kind="cancel"))

    async def _keep_cancel(self, held: Held, wish: Wish) -> None:
        held.left_wishes.append(wish)
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(KEEP_S):
                await self._cluster.wishes.send(held.entry.session_id, wish, None)
        if self._held.get(held.entry.session_id) is not held:
            await self._take_back(held)

    async def _take_back(self, held: Held) -> None:
        """Want nothing of the next owner of a session that has ended: there is none."""
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(KEEP_S):
                while held.left_wishes and held.entry.facts.has_ended:
                    await self._cluster.wishes.take_back(held.entry.session_id, held.left_wishes.pop())

    def model_of(self, loop: str, name: str | None) -> ModelClient:
        """Return the client of a session's model.

        Raises:
            Refused: there is none.
        """
        try:
            return self._models.of(name) if loop == "model" else self._models.nobody
        except ConfigError as exc:
            raise Refused(Code.INVALID, str(exc)) from exc

    async def drain(self, grace_s: float) -> tuple[int, int]:
        """Begin no session any more and wait until none is at work here, or the time is over.

        What waits for a person or for its caller is waited for by nobody: it may be hours.

        Returns:
            How many sessions are left that wait for somebody, and how many that are at work.
        """
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while at_work := self._at_work:
                    await asyncio.wait(at_work, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        at_work = self._at_work
        return len(self._tasks) - len(at_work), len(at_work)

    @property
    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [held.task for held in self._held.values() if held.task is not None]

    @property
    def _at_work(self) -> "list[asyncio.Task[None]]":
        return [held.task for held in self._held.values() if held.task is not None and not held.waits_for_somebody]

    def _unended(self) -> Iterator[tuple[str, Principal]]:
        for session_id, held in self._held.items():
            if not held.entry.facts.has_ended:
                yield session_id, held.principal

    def _hold(self, held: Held) -> None:
        self._index.add(held.entry)
        self._held[held.entry.session_id] = held
        self.line.join(held.entry.session_id, held.principal.name)
        self._start_next()

    def _start_next(self) -> None:
        if self.is_draining:
            return

        def may_run(principal: str, running: int) -> bool:
            most = next(one.principal for one in self._held.values() if one.principal.name == principal)
            quota = most.allowance.quota.running
            return quota is None or running < quota

        for session in self.line.next(may_run):
            self._start(self._held[session])

    def _look_at_all(self) -> None:
        for session_id in self._held:
            self._hearing.look(session_id)

    def _start(self, held: Held) -> None:
        held.task = asyncio.create_task(self._run(held), name=f"session {held.entry.session_id}")
        # What was wanted of it while nobody had it.
        self._hearing.look(held.entry.session_id)

    async def _run(self, held: Held) -> None:
        entry, has_run = held.entry, False
        try:
            if isinstance(held.found, Adopted):
                has_run = await run_adopted(held, self._shared)
            else:
                await held.run(self._shared)
                has_run = True
        except (SandhogError, OSError) as exc:
            # Its transcript cannot be made, or another process has the session.
            log.warning("session %s could not be begun: %s", entry.session_id, exc)
            entry.facts.fail(str(exc))
        finally:
            await asyncio.to_thread(_let_go, held, has_run)
            if entry.facts.has_ended:
                # Before anybody is told: whoever waited for its end may ask for another one at once.
                await self.quotas.ended(held.principal, entry.session_id)
            self._held.pop(entry.session_id, None)
            self.line.ended(entry.session_id)
            entry.wake()
            self._on_end(entry)
            self._start_next()
            await self._take_back(held)

    async def _is_coming(self, session_id: str) -> bool:
        """Return whether a session was adopted and is not held yet: `_start` looks at what is wanted of it."""
        if session_id in self._held:
            return False
        if await self._cluster.store.owner_of(session_id) != self._cluster.ownership.coordinator:
            return False
        entry = await asyncio.to_thread(self._index.get, session_id)
        return session_id not in self._held and entry is not None and not entry.facts.has_ended

    async def _adopt(self, adopted: Adopted) -> None:
        """Run a session that was adopted from a coordinator that died.

        Raises:
            SandhogError: it cannot go on.
        """
        entry = await asyncio.to_thread(self._index.get, adopted.session_id)
        if entry is None:
            raise TranscriptError(f"session {adopted.session_id} is not on the volume")
        if entry.session_id in self._held:
            # It could not begin yet, and is tried again by itself, whatever a Redis that was emptied knows of it.
            return
        try:
            held = await self._continued(entry, adopted)
        except SandhogError as exc:
            entry.facts.last_error = f"It was taken over and cannot go on yet: {exc}"
            raise
        entry.is_ours = True
        self._held[entry.session_id] = held
        self.line.begin(entry.session_id, held.principal.name)
        self._start(held)

    async def _continued(self, entry: Entry, found: Resumable | Adopted) -> Held:
        """Return a session that somebody had before, under what its principal may have now, and its messages."""
        principal = self.principal(entry.record.principal)
        saved, ceiling = found.saved.to_request(self._admission.models), principal.allowance.ceiling
        tools = in_both(saved.ceiling.tools, ceiling.tools)
        request = replace(saved, ceiling=ceiling.model_copy(update={"tools": tools}))
        model = self.model_of(entry.record.loop, found.saved.to_model(None).model)
        held = Held(entry, request, model, principal, found)
        held.messages = await asyncio.to_thread(kept_messages, entry.directory, heard_in(found.reading.entries))
        return held

    def principal(self, name: str) -> Principal:
        """Return a principal as it is now.

        Raises:
            Refused: it is no more.
        """
        principal = self._tokens.principal(name)
        if principal is None:
            raise Refused(Code.NOT_FOUND, f"Its principal {name} is no more.")
        return principal


def _let_go(held: Held, has_run: bool) -> None:
    """Let go of a session; nothing more is to be heard where it has run to its end. Blocks for the volume."""
    entry = held.entry
    entry.let_go()
    # What was accepted and broken off by a fault is heard later, but not what somebody has cancelled.
    has_heard_all = held.cancelled.is_set() or not held.messages
    # Not where another process has it: what is kept is that one's.
    if has_run and entry.facts.has_ended and has_heard_all:
        with contextlib.suppress(OSError):
            forget_messages(entry.directory)
        forget_carried(entry.directory)
