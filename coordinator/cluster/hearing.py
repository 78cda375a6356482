"""What other processes want of sessions that this one has: wishes (Redis) → **hearing** → service, command."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from coordinator.cluster.patience import patiently
from coordinator.cluster.wishes import Told, Wish, Wishes
from coordinator.ending import end
from coordinator.errors import RedisLost

log = logging.getLogger(__name__)

Grant = Callable[[str, Wish], "Told | Coroutine[Any, Any, Told]"]
"""Does what is wanted of a session and returns what became of it, or what will say so: for what takes a while."""


class Hearing:
    """Takes wishes and lets them be granted. Close it when done.

    Args:
        wishes: Where they are taken from.
        grant: Grants or refuses one; does not raise for what was wanted.
        is_coming: Whether a session is ours and does not run here yet: its wishes wait until it is looked again.
    """

    def __init__(self, wishes: Wishes, grant: Grant, is_coming: Callable[[str], Awaitable[bool]] | None = None) -> None:
        self._wishes = wishes
        self._grant = grant
        self._is_coming = is_coming
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def look(self, session: str) -> None:
        """Let what is wanted of a session be done soon."""
        if not self._is_closed:
            self._begin(self._look(session), f"wishes of {session}")

    async def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        await end(*self._tasks)

    async def _look(self, session: str) -> None:
        try:
            # Nobody says a second time that something is wanted.
            wishes = await patiently(partial(self._taken, session), asyncio.Event())
        except (RedisLost, OSError) as exc:
            log.warning("wishes are not heard", extra={"session_id": session, "error": str(exc)})
            return
        # All of them before the first is told of: nothing that comes later may be heard in between.
        for wish, told in [(wish, self._grant(session, wish)) for wish in wishes]:
            if isinstance(told, Told):
                await self._tell(session, wish, told)
            else:
                self._begin(self._later(session, wish, told), f"{wish.kind} of {session}")

    async def _taken(self, session: str) -> Sequence[Wish]:
        if self._is_coming is not None and await self._is_coming(session):
            return []
        return await self._wishes.take(session)

    async def _later(self, session: str, wish: Wish, told: Coroutine[Any, Any, Told]) -> None:
        await self._tell(session, wish, await told)

    async def _tell(self, session: str, wish: Wish, told: Told) -> None:
        try:
            await self._wishes.tell(wish, told)
        except (RedisError, OSError) as exc:
            log.warning("a wish is not told of", extra={"session_id": session, "error": str(exc)})

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
