"""What one process wants of a session that another one has: service, commands → **wishes** (Redis) → its owner.

A wish stands in the session's own list, so that it outlives an owner that dies: whoever goes on with the session takes
it. Each is taken once, and its sender can ask what became of it.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Sequence
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from redis.asyncio import Redis

from worker.contract import keys

POLL_S = 0.05
MAX_POLL_S = 2.0
"""Who asks is woken by the answer; it looks for itself as well, for a command listens to nobody, and owners of an
earlier release wake nobody."""
MOST = 200
"""Wishes that wait for one session; of more, the oldest are forgotten."""


class Wish(BaseModel):
    """One thing that is wanted of a session."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    wish_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    kind: Literal["cancel", "message", "finish", "limits", "copy", "cancel_calls", "step"]
    asker: str = ""
    """The coordinator that is woken by the answer; "" for none."""
    only: str = ""
    """The one coordinator that may hear it; "" where whoever goes on with the session may as well."""
    text: str = ""
    """What is said, with a message or a finish; with a step the word for what is asked of it, see `carried`."""
    within_s: float = 0.0
    """How long its owner may wait for a step's answers before it tells what there is."""
    limits: dict[str, JsonValue] = {}
    """The fields to be changed."""
    to: str = ""
    """The session that gets a copy of the workspace."""
    calls: str = ""
    """Which calls are to end: one as `3.0`, or all of a step as `3`."""


class Told(BaseModel):
    """What became of a wish."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    refusal: str = ""
    """Code of the refusal; "" where it was granted."""
    message: str = ""
    """Why it was refused."""
    fix: str = ""
    result: dict[str, JsonValue] = {}
    """What came of it: the limits now, what was copied, which calls end and whether they may have begun, or the word
    for a step's answers."""


class Wishes:
    """Sends wishes and takes them.

    Args:
        client: The cluster's Redis.
        coordinator: Who sends and takes them; "" for a command that only sends.
    """

    def __init__(self, client: Redis, coordinator: str = "") -> None:
        self._redis = client
        self._coordinator = coordinator
        self._awaited: dict[str, asyncio.Event] = {}

    async def owner_of(self, session: str, named: str = "") -> str | None:
        """Return the live coordinator that has a session; `named` where Redis knows of none and that one lives."""
        found = await cast("Awaitable[bytes | None]", self._redis.hget(keys.session(session), "owner"))
        for name in (found.decode() if found else "", named):
            if name and await self._redis.exists(keys.coordinator_lease(name)):
                return name
        return None

    async def send(self, session: str, wish: Wish, owner: str | None) -> None:
        """Leave a wish for whoever has the session, and let its owner look; None where there is none now."""
        name = keys.wishes(session)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.rpush(name, self._written(wish))
            pipe.ltrim(name, -MOST, -1)
            pipe.expire(name, keys.WISHES_TTL_S)
            if owner is not None:
                pipe.rpush(keys.asked(owner), f"{keys.LOOK}{session}")
                pipe.expire(keys.asked(owner), keys.ASKED_TTL_S)
            await pipe.execute()

    async def take(self, session: str) -> Sequence[Wish]:
        """Return what is wanted of a session, oldest first, once; what cannot be read or is not for us is left out."""
        found = await cast("Awaitable[list[bytes] | None]", self._redis.lpop(keys.wishes(session), MOST))
        wishes = []
        for text in found or []:
            try:
                wish = Wish.model_validate_json(text)
            except ValidationError:
                # Of a later release.
                continue
            if wish.only in ("", self._coordinator):
                wishes.append(wish)
        return wishes

    async def take_back(self, session: str, wish: Wish) -> bool:
        """Want a thing no more; return whether nobody had taken the wish."""
        return bool(await self._redis.lrem(keys.wishes(session), 1, self._written(wish)))

    def _written(self, wish: Wish) -> str:
        return wish.model_copy(update={"asker": self._coordinator}).model_dump_json()

    async def drop(self, session: str) -> None:
        """Forget what was wanted of a session that had ended."""
        await self._redis.delete(keys.wishes(session))

    async def tell(self, wish: Wish, told: Told) -> None:
        """Say what became of a wish."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(keys.told(wish.wish_id), told.model_dump_json(), ex=keys.TOLD_TTL_S)
            if wish.asker:
                pipe.rpush(keys.asked(wish.asker), f"{keys.TOLD}{wish.wish_id}")
                pipe.expire(keys.asked(wish.asker), keys.ASKED_TTL_S)
            await pipe.execute()

    def wake(self, wish_id: str) -> None:
        """Let whoever waits here for what became of a wish look."""
        if wish_id in self._awaited:
            self._awaited[wish_id].set()

    async def answer(self, wish: Wish, within_s: float) -> Told | None:
        """Return what became of a wish; None where nobody says so within the time: it still stands."""
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + within_s, POLL_S
        woken = self._awaited.setdefault(wish.wish_id, asyncio.Event())
        try:
            while loop.time() < deadline:
                woken.clear()
                found = await self._redis.getdel(keys.told(wish.wish_id))
                if found is not None:
                    return Told.model_validate_json(found)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), min(pause_s, max(deadline - loop.time(), 0.0)))
                pause_s = min(pause_s * 1.3, MAX_POLL_S)
        finally:
            self._awaited.pop(wish.wish_id, None)
        return None
