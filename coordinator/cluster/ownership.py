"""Which sessions are this coordinator's: lease and ownership, kept in Redis by one task for all sessions of a process.

The lease says that the coordinator lives. When it has lapsed, or Redis has lost it, ownership is written back first,
and each session that another coordinator has by now is told so. Fencing does not depend on any of this: a session's
generation does it. This only ends a coordinator's useless work early, and lets others see that it died.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from coordinator.cluster.store import Store
from coordinator.ending import end
from worker.contract import keys

log = logging.getLogger(__name__)

EVERY_S = 1.0
LAST_S = 2.0
"""How long Redis may take to hear of the last sessions that ended."""
LISTEN_S = 1.0
"""How long one question to Redis waits for what other processes want."""
DEAF_S = 0.2
"""The pause before it is asked again that did not answer."""


@dataclass(frozen=True)
class _Owned:
    generation: int
    is_adoptable: bool
    on_lost: Callable[[], None]
    on_cancel: Callable[[], None]
    is_last: Callable[[], bool]


async def _nothing() -> None: ...


class Ownership:
    """One coordinator's lease and sessions. Use `async with`; runs two tasks of its own."""

    def __init__(self, store: Store, coordinator: str) -> None:
        self.coordinator = coordinator
        self.on_wishes: Callable[[str], None] = lambda session: None
        """Called with a session of which something is wanted, see `Wishes`; it need not have been opened yet."""
        self.on_renewed: Callable[[], Awaitable[object]] = _nothing
        """Called each time that the lease was renewed, for what is kept in Redis beside it; may raise `RedisError`."""
        self.on_told: Callable[[str], None] = lambda wish_id: None
        """Called with the id of a wish of this coordinator's of which its owner has told what became."""
        self.on_hearing_again: Callable[[], None] = lambda: None
        """Called once others are heard again after a time in which what they asked may have been lost."""
        self._store = store
        self._owned: dict[str, _Owned] = {}
        self._has_lease = False
        self._must_note = False
        """The lease had lapsed: not every session has been written back since."""
        self._left: set[str] = set()
        """Sessions that have ended, and of which Redis does not know it yet."""
        self._owed: dict[str, Callable[[], Awaitable[None]]] = {}
        """What sessions that have ended still have in Redis."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Ownership":
        self._tasks = [
            asyncio.create_task(self._renew_forever(), name="ownership"),
            asyncio.create_task(self._listen_forever(), name="wishes"),
        ]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await end(*self._tasks)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._tell_left()

    def own(
        self,
        session: str,
        generation: int,
        *,
        is_adoptable: bool = False,
        on_lost: Callable[[], None] = lambda: None,
        on_cancel: Callable[[], None] = lambda: None,
        is_last: Callable[[], bool] = lambda: True,
    ) -> None:
        """Keep a session as this coordinator's; it must have been opened under this generation.

        Args:
            session: The session.
            generation: Its generation.
            is_adoptable: Another coordinator takes it over when this one dies.
            on_lost: Called once when another one has it.
            on_cancel: Called when another process asks for its cancel.
            is_last: Whether no later owner has written anything; asked where Redis knows nothing of the session.
        """
        self._left.discard(session)
        self._owned[session] = _Owned(generation, is_adoptable, on_lost, on_cancel, is_last)

    def has(self, session: str) -> bool:
        """Return whether a session runs here."""
        return session in self._owned

    async def is_lost(self, session: str) -> bool:
        """Return whether another coordinator has a session by now that was kept as ours, asked as `note` does.

        Raises:
            RedisError: Redis does not answer.
        """
        return session in self._owned and not await self.note(session)

    async def note(self, session: str) -> bool:
        """Write down that a session is ours; False when it is another's by now.

        Raises:
            RedisError: Redis does not answer.
        """
        owned = self._owned.get(session)
        if owned is None:
            return False
        if owned.is_adoptable and not self._has_lease:
            # Who is seen as an owner must be seen to live.
            await self._store.renew_coordinator(self.coordinator)
            self._has_lease = True
        is_ours = await self._store.own_session(
            session, owned.generation, self.coordinator, is_adoptable=owned.is_adoptable, is_last=owned.is_last
        )
        if not is_ours and self._owned.pop(session, None) is not None:
            owned.on_lost()
        return is_ours

    async def disown(self, session: str) -> None:
        """Let a session go that has ended. A Redis that is not there to hear of it is told later.

        Where this coordinator dies before, the session is adopted and found ended.
        """
        if self._owned.pop(session, None) is None:
            return
        # Before Redis is asked: whoever waits for it may not wait for long.
        self._left.add(session)
        try:
            await self._tell_left()
        except (RedisError, OSError) as exc:
            log.info("a session was not disowned yet", extra={"session_id": session, "error": str(exc)})

    def owe(self, session: str, give: Callable[[], Awaitable[None]]) -> None:
        """Give back later what a session that has ended has in Redis, which does not answer now.

        Args:
            session: The session.
            give: Does it, unless the session has begun anew; raises `RedisError` where Redis is still away.
        """
        self._owed[session] = give

    async def _tell_left(self) -> None:
        # First: where we die before the rest is told, the sessions are adopted and found ended.
        for session, give in list(self._owed.items()):
            await give()
            self._owed.pop(session, None)
        for session in list(self._left):
            # It may have begun again here meanwhile.
            if session in self._left:
                await self._store.disown_session(session, self.coordinator)
                self._left.discard(session)

    async def _renew_forever(self) -> None:
        while True:
            try:
                had_lease = await self._store.renew_coordinator(self.coordinator)
                self._must_note |= self._has_lease and not had_lease
                self._has_lease = True
                await self._tell_left()
                if self._must_note:
                    log.warning("the coordinator's lease had lapsed")
                    for session in list(self._owned):
                        await self.note(session)
                    self._must_note = False
                await self.on_renewed()
            except (RedisError, OSError) as exc:
                log.info("the coordinator's lease is not renewed", extra={"error": str(exc)})
            await asyncio.sleep(EVERY_S)

    async def _listen_forever(self) -> None:
        may_have_missed = False
        while True:
            try:
                asked = await self._store.next_asked(self.coordinator, LISTEN_S)
                if may_have_missed:
                    may_have_missed = False
                    self.on_hearing_again()
                if asked is None:
                    continue
                if asked.startswith(keys.LOOK):
                    self.on_wishes(asked.removeprefix(keys.LOOK))
                elif asked.startswith(keys.TOLD):
                    self.on_told(asked.removeprefix(keys.TOLD))
                elif asked in self._owned:
                    self._owned[asked].on_cancel()
            except (RedisError, OSError) as exc:
                # What was taken from the list may have gone with its answer.
                may_have_missed = True
                log.info("nothing is heard of other processes", extra={"error": str(exc)})
                await asyncio.sleep(DEAF_S)
