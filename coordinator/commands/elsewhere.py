"""Sessions that other processes run: asked about and spoken to through every Redis that this machine knows of."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.cluster.store import Store, connect
from coordinator.cluster.wishes import Told, Wish, Wishes
from coordinator.embedded import live_redis_urls
from coordinator.errors import ConfigError
from coordinator.settings import Settings

_T = TypeVar("_T")

COPY_S = 185.0
"""How long a copy may take: until the session's step is over, and for the copying itself."""


async def everywhere(redis_url: str | None, state_dir: Path, ask: Callable[[Redis], Awaitable[_T]]) -> list[_T]:
    """Return what the Redis that was named says, else what each one says of the commands that run now.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """
    answers = []
    for url in [redis_url] if redis_url else live_redis_urls(state_dir):
        client: Redis = connect(url)
        try:
            answers.append(await ask(client))
        except RedisError as exc:
            if redis_url:
                raise ConfigError(f"Redis at SANDHOG_REDIS_URL does not answer: {exc}.") from exc
            # It ended while it was being asked.
        finally:
            await client.aclose()
    return answers


def living(settings: Settings, sessions: Sequence[str]) -> set[str]:
    """Return those of the sessions that a live coordinator has.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> set[str]:
        store = Store(client)
        return {session for session in sessions if await store.owner_of(session) is not None}

    return set().union(*asyncio.run(everywhere(settings.redis_url, settings.state_dir, ask)))


def ask_copy(settings: Settings, session: str, target: str) -> int:
    """Let whoever runs a session copy its workspace for another one; return the last step whose work is in the copy.

    Raises:
        ConfigError: it cannot be copied, or the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> Told | None:
        wishes, wish = Wishes(client), Wish(kind="copy", to=target)
        owner = await wishes.owner_of(session)
        if owner is None:
            return None
        await wishes.send(session, wish, owner)
        unheard = Told(refusal="UNAVAILABLE", message="Whoever runs it did not say that its workspace was copied.")
        return await wishes.answer(wish, COPY_S) or unheard

    told = [one for one in asyncio.run(everywhere(settings.redis_url, settings.state_dir, ask)) if one is not None]
    if not told:
        raise ConfigError(f"Session {session} is run by no process any more. Ask again.")
    if told[0].refusal:
        raise ConfigError(f"Session {session}: {told[0].message}")
    return int(str(told[0].result["step"]))


def ask_cancel(settings: Settings, session: str) -> bool:
    """Ask whoever runs a session to cancel it; False where nobody does.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> bool:
        return await Store(client).ask_cancel(session)

    return any(asyncio.run(everywhere(settings.redis_url, settings.state_dir, ask)))
