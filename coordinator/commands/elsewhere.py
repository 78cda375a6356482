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

CALLS_S = 10.0
"""How long whoever runs a session may take to say which calls it ends."""
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

    told = _told(settings, session, Wish(kind="copy", to=target), COPY_S, "that its workspace was copied")
    if told is None:
        raise ConfigError(f"Session {session} is run by no process any more. Ask again.")
    return int(str(told.result["step"]))


def ask_cancel_calls(settings: Settings, session: str, name: str) -> dict[str, bool] | None:
    """Ask whoever runs a session to end a call, as `3.0`, or all calls of a step, as `3`.

    Returns:
        Of each call that had no answer whether it may have begun; None where nobody runs the session.

    Raises:
        ConfigError: it is not known what became of it, or the Redis that was named does not answer.
    """
    told = _told(settings, session, Wish(kind="cancel_calls", calls=name), CALLS_S, "which calls it ends")
    return None if told is None else {call: bool(has_begun) for call, has_begun in told.result.items()}


def _told(settings: Settings, session: str, wish: Wish, within_s: float, what: str) -> Told | None:
    """Return what the live owner of a session says of a wish; None where there is none.

    Raises:
        ConfigError: it refuses, or did not say `what`, or the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> Told | None:
        wishes = Wishes(client)
        owner = await wishes.owner_of(session)
        if owner is None:
            return None
        await wishes.send(session, wish, owner)
        unheard = Told(refusal="UNAVAILABLE", message=f"Whoever runs it did not say {what}.")
        return await wishes.answer(wish, within_s) or unheard

    told = [one for one in asyncio.run(everywhere(settings.redis_url, settings.state_dir, ask)) if one is not None]
    if told and told[0].refusal:
        raise ConfigError(f"Session {session}: {told[0].message}")
    return told[0] if told else None


def ask_cancel(settings: Settings, session: str) -> bool:
    """Ask whoever runs a session to cancel it; False where nobody does.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> bool:
        return await Store(client).ask_cancel(session)

    return any(asyncio.run(everywhere(settings.redis_url, settings.state_dir, ask)))
