"""Sessions whose coordinator died go on here: leases, volume → **takeover** → resume.

A coordinator is taken for dead when its lease has been gone for a moment, counted by our own clock and only while Redis
answered: after an outage, or in a new life of Redis, owners first have the time to write their leases back. A false
suspicion does no harm: one script decides who has a session, and whoever had it before is fenced.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.store import Store
from coordinator.ending import end
from coordinator.errors import SandhogError
from coordinator.session.reading import SessionReading, is_being_written, read_session, segments
from coordinator.session.rebuild import Rebuilt, rebuild
from coordinator.session.saved import SavedSession, read_saved
from worker.contract import keys

log = logging.getLogger(__name__)

EVERY_S = 0.3
TIDY_S = 1.0
"""How often coordinators that are gone are forgotten, and sessions looked for that are ours and that nobody runs."""
STRAYS_S = 10.0
"""How often those are looked at again that a life of Redis does not know and that could not be adopted yet."""
LAPSED_S = 0.9
"""How long a lease must have been gone, beyond its own time."""
QUIET_S = keys.COORDINATOR_LEASE_MS / 1000 + 10.0
"""How long nobody is suspected after Redis was away, is another one, or was asked for the first time."""
AGAIN_S, LAST_AGAIN_S = 2.0, 60.0
"""The pause before a session is tried again that could not go on: twice as long each time."""
TAIL_BYTES = 64 * 1024
"""The last event of a session is looked for in so much of its transcript."""


@dataclass(frozen=True)
class Orphan:
    """A session whose coordinator is gone."""

    session_id: str
    owner: str
    """"" where Redis knows nothing of it."""


@dataclass(frozen=True)
class Adopted:
    """A session that is ours now, to be gone on with by `resume.continuing`."""

    session_id: str
    generation: int
    saved: SavedSession
    reading: SessionReading
    rebuilt: Rebuilt


GoOn = Callable[[Adopted], Awaitable[None]]
"""Begins to run an adopted session; must not wait for its end."""


class Orphans:
    """Tells which sessions have no coordinator any more; for one task.

    Args:
        store: The shared state.
        own: This coordinator.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, own: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._run_id: str | None = None
        self._asked_at: float | None = None
        self._quiet_until = float("-inf")
        self._gone_s: dict[str, float] = {}

    @property
    def run_id(self) -> str | None:
        """The life of Redis that was asked last."""
        return self._run_id

    @property
    def is_quiet(self) -> bool:
        """Whether nobody may be suspected yet."""
        return self._clock() < self._quiet_until

    async def poll(self) -> list[Orphan]:
        """Return the sessions that may be adopted now; to be asked again and again.

        Raises:
            RedisError: Redis does not answer; the time until it does is nobody's.
        """
        try:
            run_id = await self._store.run_id()
            gone = await self._store.leaseless_coordinators()
        except (RedisError, OSError):
            self._asked_at = None
            raise
        now = self._clock()
        if run_id != self._run_id or self._asked_at is None or now - self._asked_at > QUIET_S:
            # Also time in which this process itself stood still.
            self._quiet_until, self._gone_s = now + QUIET_S, {}
            if self._run_id is None:
                # Nothing was lost that could be known: only the lease's own time must pass.
                self._quiet_until = now + keys.COORDINATOR_LEASE_MS / 1000
        elapsed_s = 0.0 if self._asked_at is None else now - self._asked_at
        self._run_id, self._asked_at = run_id, now
        self._gone_s = {one: self._gone_s[one] + elapsed_s if one in self._gone_s else 0.0 for one in gone}
        if self.is_quiet:
            return []
        return [
            Orphan(session, owner)
            for owner, sessions in gone.items()
            if owner != self._own and self._gone_s[owner] >= LAPSED_S
            for session in sessions
        ]

    async def tidy(self) -> None:
        """Forget coordinators that are gone and have no session left.

        Raises:
            RedisError: Redis does not answer.
        """
        for owner, sessions in (await self._store.leaseless_coordinators()).items():
            if not sessions and self._gone_s.get(owner, 0.0) >= LAPSED_S and not self.is_quiet:
                await self._store.drop_coordinator(owner)


async def adopt(orphan: Orphan, cluster: Cluster) -> Adopted | None:
    """Make a session ours; None where another coordinator was faster, its owner lives, or it has ended.

    Raises:
        RedisError: Redis does not answer; the session may be ours, and may be asked for again.
        TranscriptError: it cannot be read: nobody can go on with it.
    """
    store, own = cluster.store, cluster.ownership.coordinator
    session_dir = cluster.state_dir / "sessions" / orphan.session_id
    least = max(await asyncio.to_thread(segments, session_dir), default=0) + 1
    if orphan.owner:
        generation = await store.adopt_session(orphan.session_id, orphan.owner, own, least)
    elif await store.owner_of(orphan.session_id) in (None, own):
        generation = await store.open_session(orphan.session_id, least, own)
    else:
        return None
    if not generation:
        return None
    # Read only now: what its owner wrote until it lost the session counts.
    adopted = await asyncio.to_thread(_read, session_dir, orphan.session_id, generation)
    if adopted.rebuilt.ended is None:
        return adopted
    await store.disown_session(orphan.session_id, own)
    await cluster.placement.withdraw(orphan.session_id, away_s=QUIET_S)
    return None


def _read(session_dir: Path, session_id: str, generation: int) -> Adopted:
    reading = read_session(session_dir)
    return Adopted(session_id, generation, read_saved(session_dir), reading, rebuild(reading.entries))


def strays(state_dir: Path, among: Collection[str] | None = None) -> dict[str, bool]:
    """Return the sessions of the volume that another coordinator may adopt and did not end, and whether each is free.

    One that somebody here still writes is not free.

    Args:
        state_dir: The volume.
        among: Only these are looked at; None for all.
    """
    sessions = state_dir / "sessions"
    if among is None:
        among = [path.name for path in sessions.iterdir()] if sessions.is_dir() else []
    found = {}
    for session in sorted(among):
        paths = segments(sessions / session)
        try:
            if not paths or _is_nobodys(paths[max(paths)]):
                continue
            if read_saved(sessions / session).request.get("is_adoptable") is True:
                found[session] = not is_being_written(sessions / session)
        except (SandhogError, OSError) as exc:
            log.info("a session is not looked at", extra={"session_id": session, "error": str(exc)})
    return found


def _is_nobodys(segment: Path) -> bool:
    """Whether a session has ended, or is a fork that waits for its turn: whoever made that begins it."""
    with segment.open("rb") as file:
        file.seek(max(0, segment.stat().st_size - TAIL_BYTES))
        tail = file.read()
    return b'"type":"session_ended"' in tail or b'"type":"session_forked"' in tail


class TakeoverWatch:
    """Adopts sessions whose coordinator died, as long as it runs. Use `async with`.

    Args:
        cluster: Where they go on.
        go_on: Begins to run one that was adopted.
        room: How many more may run here now.
    """

    def __init__(self, cluster: Cluster, go_on: GoOn, room: Callable[[], int] = lambda: 1_000) -> None:
        self._cluster = cluster
        self._go_on = go_on
        self._room = room
        self._orphans = Orphans(cluster.store, cluster.ownership.coordinator)
        self._handed: dict[str, int] = {}
        """The generations in which sessions were handed on, while Redis lists them as ours: each is run once."""
        self._strays: set[str] = set()
        """What this life of Redis does not know, and could not be adopted yet."""
        self._looked_for: str | None = None
        self._looked_at = float("-inf")
        self._put_off: dict[str, tuple[float, float]] = {}
        """Sessions that could not go on: until when they are left alone, and for how many seconds in all."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "TakeoverWatch":
        self._task = asyncio.create_task(self._watch_forever(), name="takeover")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await end(self._task)

    async def _watch_forever(self) -> None:
        tidied_at = time.monotonic()
        while True:
            try:
                await self._take(await self._orphans.poll())
                if time.monotonic() - tidied_at > TIDY_S:
                    tidied_at = time.monotonic()
                    await self._orphans.tidy()
                    await self._take(await self._unrun())
                await self._look_for_strays()
            except (RedisError, OSError) as exc:
                log.info("orphans are not looked for", extra={"error": str(exc)})
            await asyncio.sleep(EVERY_S)

    async def _unrun(self) -> list[Orphan]:
        """Return what is ours and was not begun: only the answer to its adoption was lost, or what came next failed."""
        own = self._cluster.ownership.coordinator
        ours = await self._cluster.store.owned_by(own)
        self._handed = {one: self._handed[one] for one in ours if one in self._handed}
        return [Orphan(one, own) for one in ours if one not in self._handed and not self._cluster.ownership.has(one)]

    async def _take(self, orphans: Sequence[Orphan]) -> None:
        # Not all coordinators begin with the same one.
        for orphan in random.sample(orphans, len(orphans)):
            if self._room() <= 0:
                return
            session = orphan.session_id
            if time.monotonic() < self._put_off.get(session, (0.0, 0.0))[0]:
                continue
            try:
                adopted = await adopt(orphan, self._cluster)
                if adopted is not None and self._handed.get(session) != adopted.generation:
                    log.warning("a session is taken over", extra={"session_id": session})
                    await self._go_on(adopted)
                    self._handed[session] = adopted.generation
            except SandhogError as exc:
                await self._leave_for_now(session, exc)
                continue
            self._put_off.pop(session, None)
            # Whoever has it by now: Redis knows it again.
            self._strays.discard(session)

    async def _leave_for_now(self, session: str, exc: SandhogError) -> None:
        """Let a session stay ours that cannot go on, and be tried again: what keeps it may be mended."""
        if not (self._cluster.state_dir / "sessions" / session).exists():
            log.error("a session is not on the volume any more", extra={"session_id": session, "error": str(exc)})
            await self._cluster.store.disown_session(session, self._cluster.ownership.coordinator)
            self._strays.discard(session)
            return
        pause_s = min(2 * self._put_off.get(session, (0.0, AGAIN_S / 2))[1], LAST_AGAIN_S)
        self._put_off[session] = (time.monotonic() + pause_s, pause_s)
        extra = {"session_id": session, "error": str(exc), "again_s": pause_s}
        log.error("a session that was taken over cannot go on yet", extra=extra)

    async def _look_for_strays(self) -> None:
        """In each life of Redis, until all have an owner: what it does not know any more, the volume does.

        What begins later is known to it: only what the first look found is looked at again.
        """
        if self._orphans.is_quiet:
            return
        state_dir = self._cluster.state_dir
        if self._looked_for != self._orphans.run_id:
            found = await asyncio.to_thread(strays, state_dir)
            self._looked_for = self._orphans.run_id
        elif self._strays and time.monotonic() - self._looked_at > STRAYS_S:
            found = await asyncio.to_thread(strays, state_dir, self._strays)
        else:
            return
        ownership, store = self._cluster.ownership, self._cluster.store
        self._strays = {one for one in found if not ownership.has(one)}
        for one in [one for one in self._strays if not found[one]]:
            if await store.owner_of(one) is not None:
                self._strays.discard(one)
        # One that was just handed on may not be ours in `ownership` yet, and would be taken a second time.
        await self._take([Orphan(one, "") for one in self._strays if found[one] and one not in self._handed])
        self._looked_at = time.monotonic()
