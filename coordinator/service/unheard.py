"""Messages to sessions that had ended, which a server accepted and had no time for: volume → **unheard** → floor."""

import asyncio
import logging

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.ending import end
from coordinator.errors import SandhogError
from coordinator.service.afar import Afar
from coordinator.service.entries import Entry, Index
from coordinator.service.floor import Floor
from coordinator.service.messages import MESSAGES, heard_in, kept_messages
from coordinator.session.reading import read_session
from coordinator.session.takeover import strays

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""How often it is looked whether whoever accepted such a message still lives."""


class Unheard:
    """Lets those sessions go on, found once at the server's start. Use `async with`.

    Args:
        cluster: Tells who lives.
        index: All sessions that are known.
        floor: Where they go on.
    """

    def __init__(self, cluster: Cluster, index: Index, floor: Floor) -> None:
        self._cluster = cluster
        self._index = index
        self._floor = floor
        self._afar = Afar(cluster)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Unheard":
        self._task = asyncio.create_task(self._hear(), name="unheard")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await end(self._task)

    async def _hear(self) -> None:
        left = await asyncio.to_thread(self._spoken_to)
        while left:
            left = [entry for entry in left if not await self._is_done(entry)]
            await asyncio.sleep(EVERY_S)

    def _spoken_to(self) -> list[Entry]:
        return [entry for entry in self._index if entry.facts.has_ended and (entry.directory / MESSAGES).exists()]

    async def _is_done(self, entry: Entry) -> bool:
        """Let a session go on that has something to hear and that nobody has; return whether it is settled now."""
        session = entry.session_id
        if self._floor.held(session) is not None:
            # Somebody spoke to it here: what was kept is heard with that.
            return True
        try:
            owner = await self._afar.owner_of(entry)
            if owner not in (None, self._cluster.ownership.coordinator) or self._floor.is_draining:
                return False
            if await asyncio.to_thread(strays, self._cluster.state_dir, [session]):
                # It had begun to go on: it is taken over, and hears what was kept.
                return False
            text = await asyncio.to_thread(_waiting_in, entry)
            if text is not None:
                log.info("a session hears what was said to it before this server began", extra={"session_id": session})
                await self._floor.go_on(entry, text, is_again=True)
        except (RedisError, OSError) as exc:
            log.info("an unheard message waits for Redis", extra={"session_id": session, "error": str(exc)})
            return False
        except SandhogError as exc:
            log.warning("a message cannot be heard", extra={"session_id": session, "error": str(exc)})
        return True


def _waiting_in(entry: Entry) -> str | None:
    """Return the first message that a session has not heard, None where it has heard all; blocks for the volume."""
    messages = kept_messages(entry.directory, heard_in(read_session(entry.directory).entries))
    return messages.take() if messages else None
