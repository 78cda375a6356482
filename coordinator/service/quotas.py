"""How many sessions a principal may have in the whole cluster: admission → **quotas** → counts, line."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from redis.exceptions import RedisError

from coordinator.cluster.counts import Counts, Taken
from coordinator.ending import end
from coordinator.service.principals import Principal
from coordinator.service.refusals import Code, Refused

log = logging.getLogger(__name__)

RENEW_S = 10.0
GIVE_S = 2.0
"""A session's end is not held up longer by a Redis that is away; what it does not hear expires."""

AWAY = (RedisError, OSError, TimeoutError)


class Quotas:
    """Asks for room before a session is made. Use `async with`: sessions are counted anew as long as they are here.

    Args:
        counts: What all servers have counted.
        here: The sessions that wait or run in this process and have not ended, each with its principal.
    """

    def __init__(self, counts: Counts, here: Callable[[], Iterable[tuple[str, Principal]]]) -> None:
        self._counts = counts
        self._here = here
        # A session that ends while all are counted anew would be counted behind its end.
        self._one_at_a_time = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Quotas":
        self._renewing = asyncio.create_task(self._renew(), name="quotas")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._renewing is not None:
            await end(self._renewing)

    @asynccontextmanager
    async def room(self, principal: Principal, session_id: str, *, is_new: bool = True) -> AsyncIterator[None]:
        """Take room for one more session, a new one or one that goes on; given back where it cannot begin.

        Raises:
            Refused: the quota is used up, or Redis does not say whether it is.
        """
        quota = principal.allowance.quota
        most_created = quota.created_per_hour if is_new else None
        if most_created is None and quota.live is None:
            yield
            return
        taken = await self._take(principal, session_id, most_created)
        try:
            yield
        except BaseException:
            with suppress(*AWAY):
                async with asyncio.timeout(GIVE_S):
                    await self._counts.undo(taken, session_id)
            raise

    async def _take(self, principal: Principal, session_id: str, most_created: int | None) -> Taken:
        name, live = principal.name, principal.allowance.quota.live
        try:
            taken = await self._counts.take(name, session_id, most_created=most_created, most_live=live)
        except AWAY as exc:
            log.warning("Redis does not answer", extra={"error": str(exc)})
            words = f"Redis does not answer, so that nobody knows whether the quota of {name} is used up."
            raise Refused(Code.UNAVAILABLE, words, "Ask again.", retry_after_s=5) from exc
        if taken.used_up == "created":
            words = f"{name} has created {most_created} sessions within an hour, as many as it may."
            raise Refused(Code.TOO_MANY, words, "Wait.", retry_after_s=taken.ask_again_s)
        if taken.used_up == "live":
            words = f"{name} has {live} sessions that run or wait, as many as it may."
            raise Refused(Code.TOO_MANY, words, "Wait for one to end, or cancel one.", retry_after_s=taken.ask_again_s)
        return taken

    async def ended(self, principal: Principal, session_id: str) -> None:
        """Let another session have the room of one that has ended."""
        if principal.allowance.quota.live is None:
            return
        with suppress(*AWAY):
            async with asyncio.timeout(GIVE_S), self._one_at_a_time:
                await self._counts.ended(principal.name, session_id)

    async def _renew(self) -> None:
        while True:
            with suppress(*AWAY):
                async with self._one_at_a_time:
                    await self._renew_once()
            await asyncio.sleep(RENEW_S)

    async def _renew_once(self) -> None:
        mine: dict[str, list[str]] = defaultdict(list)
        for session_id, principal in self._here():
            if principal.allowance.quota.live is not None:
                mine[principal.name].append(session_id)
        for name, sessions in mine.items():
            await self._counts.renew(name, sessions)
