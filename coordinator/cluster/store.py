"""What the coordinator keeps in and asks of Redis: sessions, nodes, places, lanes, fences, grants.

Key names and scripts are the contract's; this is their asynchronous side. A script is never repeated by the client
library, and each of them may be repeated by its caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from pydantic import ValidationError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from worker.contract import keys, metadata, scripts
from worker.contract.metadata import Lines
from worker.contract.orders import CONTRACT_VERSION, CallKey, NodeLife

LANE_TTL_S = 600 + keys.OUTAGE_S
ERRAND_TTL_S = 60
CONNECTIONS = 64
"""Of one client; what more would be said at once waits for one."""
SILENT_S = 5.0
"""A connection that says nothing for so long is given up: the other end may be gone without a word."""
IsLast = Callable[[], bool]
"""Whether no later owner of a session has written anything on the volume; blocks."""


@dataclass(frozen=True)
class NodeView:
    """A node as its coordinator sees it now."""

    life: NodeLife
    is_leased: bool
    """Its lease stands and names this life."""
    is_drained: bool = False
    """An operator wants it to have no new sessions."""
    taken: int = 0
    """Places that sessions have."""

    @property
    def state(self) -> Literal["ready", "drained", "draining"]:
        """What it is about, while it lives."""
        return "drained" if self.is_drained and self.life.state == "ready" else self.life.state

    @property
    def is_ready(self) -> bool:
        """Whether it lives, does not end, and can be asked for anything: it speaks our version of the contract."""
        return self.is_leased and self.life.state == "ready" and self.life.v == CONTRACT_VERSION

    @property
    def takes_sessions(self) -> bool:
        """Whether new sessions may come here."""
        return self.is_ready and not self.is_drained


@dataclass(frozen=True)
class NodeUse:
    """How much of a node is taken now."""

    places: int
    lanes: int
    lease_age_s: float | None
    """Since it last renewed its lease; None where it has none."""


def connect(redis_url: str, *, blocking_s: float = 0.0) -> Redis:
    """Return a client that repeats nothing by itself, for commands that block no longer than said."""
    pool = BlockingConnectionPool.from_url(
        redis_url,
        max_connections=CONNECTIONS,
        timeout=SILENT_S,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=blocking_s + SILENT_S,
        socket_connect_timeout=SILENT_S,
        health_check_interval=10,
    )
    return Redis.from_pool(pool)


class Store:
    """The coordinator's side of the shared state."""

    def __init__(self, client: Redis) -> None:
        self._redis = client
        self._open_session = client.register_script(scripts.OPEN_SESSION)
        self._adopt = client.register_script(scripts.ADOPT)
        self._own = client.register_script(scripts.OWN)
        self._close_session = client.register_script(scripts.CLOSE_SESSION)
        self._begin_step = client.register_script(scripts.BEGIN_STEP)
        self._fence = client.register_script(scripts.FENCE)
        self._cancel = client.register_script(scripts.CANCEL)
        self._store_seen = client.register_script(metadata.STORE)
        self._take = client.register_script(scripts.TAKE)
        self._give = client.register_script(scripts.GIVE)
        self._take_in_life = client.register_script(scripts.TAKE_IN_LIFE)
        self._run_id = client.register_script(scripts.RUN_ID)

    async def run_id(self) -> str:
        """Return the id of this life of Redis: another one may have lost its last second."""
        return _text(await self._run_id())

    async def nodes(self) -> list[NodeView]:
        """Return all registered nodes, by name."""
        names = await self._members(keys.NODES)
        if not names:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.smembers(keys.DRAINED)
            pipe.mget([keys.node(name) for name in names])
            pipe.mget([keys.lease(name) for name in names])
            for name in names:
                pipe.zcard(keys.places(name))
            drained, lives, leases, *taken = await pipe.execute()
        gone = [name for name, life in zip(names, lives, strict=True) if life is None]
        if gone:
            # A node that lives writes its name again within a second.
            await self._redis.srem(keys.NODES, *gone)
        marked = {_text(name) for name in drained}
        views = [_view(life, lease) for life, lease in zip(lives, leases, strict=True)]
        return [
            replace(view, is_drained=view.life.node in marked, taken=int(count))
            for view, count in zip(views, taken, strict=True)
            if view is not None
        ]

    async def drain_node(self, node: str, *, undo: bool = False) -> None:
        """Let a node have no new sessions from now on, also after a restart; or let it have some again."""
        if undo:
            await self._redis.srem(keys.DRAINED, node)
        else:
            await self._redis.sadd(keys.DRAINED, node)

    async def node(self, name: str) -> NodeView | None:
        """Return one node, or None if it never registered, or its description has expired or cannot be read."""
        return (await self.described([name]))[name]

    async def described(self, names: Sequence[str]) -> dict[str, NodeView | None]:
        """Return nodes by name, as `node` does."""
        found = await self._redis.mget([*map(keys.node, names), *map(keys.lease, names)]) if names else []
        halves = zip(found[: len(names)], found[len(names) :], strict=True)
        return {name: _view(life, lease) for name, (life, lease) in zip(names, halves, strict=True)}

    async def leases(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return the life that each node's lease names; None for a node without one."""
        found = await self._redis.mget([keys.lease(name) for name in names]) if names else []
        return {name: None if life is None else _text(life) for name, life in zip(names, found, strict=True)}

    async def use_of(self, names: Sequence[str]) -> list[NodeUse]:
        """Return how much of each of these nodes is taken."""
        now_s = int((await self._redis.time())[0])
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.zcount(keys.places(name), f"({now_s}", "+inf")
                pipe.zcount(keys.lanes(name), f"({now_s}", "+inf")
                pipe.pttl(keys.lease(name))
            found = [int(one) for one in await pipe.execute()]
        return [
            NodeUse(places, lanes, None if left_ms < 0 else max(0, keys.LEASE_MS - left_ms) / 1000)
            for places, lanes, left_ms in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    async def open_session(self, session: str, least_generation: int = 1, owner: str = "") -> int:
        """Return a generation above all that the session had; older owners are fenced from now on.

        The same `owner` gets the same one again while that is not below the least.
        """
        arguments: list[str | int] = [least_generation, keys.SESSION_TTL_S, owner]
        return int(await self._open_session(keys=[keys.session(session)], args=arguments))

    async def adopt_session(self, session: str, dead: str, owner: str, least_generation: int) -> int:
        """Return the generation in which `owner` has the session of a dead coordinator; 0 where it cannot have it.

        One that it has, and has not written in, is given to it again.
        """
        names = [keys.session(session), keys.coordinator_lease(dead), keys.owned(dead), keys.owned(owner)]
        arguments: list[str | int] = [dead, owner, session, least_generation, keys.SESSION_TTL_S]
        return int(await self._adopt(keys=names, args=arguments))

    async def own_session(
        self, session: str, generation: int, owner: str, *, is_adoptable: bool, is_last: IsLast = lambda: True
    ) -> bool:
        """Write down who owns a session; False when another coordinator has it now, or had it and ended it.

        `is_last`: as for `begin_step`.
        """
        names = [keys.session(session), keys.owned(owner)]
        arguments: list[str | int] = [generation, owner, session, keys.SESSION_TTL_S, "1" if is_adoptable else "0"]
        return await self._unless_ended(lambda anew: self._own(keys=names, args=[*arguments, anew]), is_last)

    async def _unless_ended(self, ask: Callable[[str], Awaitable[Any]], is_last: IsLast) -> bool:
        """Ask a script that writes what is ours; where Redis knows nothing of it, only if no later owner is known."""
        done = int(await ask("0"))
        if done == scripts.UNKNOWN and await asyncio.to_thread(is_last):
            done = int(await ask("1"))
        return done == 1

    async def owned_by(self, owner: str) -> list[str]:
        """Return the sessions that others may adopt when this coordinator dies."""
        return await self._members(keys.owned(owner))

    async def disown_session(self, session: str, owner: str) -> None:
        """Let nobody adopt a session any more."""
        await self._redis.srem(keys.owned(owner), session)

    async def seat_session(self, session: str, node: str) -> None:
        """Say which node has the session's box; a box of another one ends when it asks."""
        await self._redis.hset(keys.session(session), "node", node)
        # In a Redis that was emptied it is a new key, and its owner may die before that writes it anew.
        await self._redis.expire(keys.session(session), keys.SESSION_TTL_S)

    async def node_of(self, session: str) -> str | None:
        """Return the living node that has a session's box, or had the last one; None where there is none."""
        node = await cast("Awaitable[bytes | None]", self._redis.hget(keys.session(session), "node"))
        if not node or not await self._redis.exists(keys.lease(_text(node))):
            return None
        return _text(node)

    async def owner_of(self, session: str) -> str | None:
        """Return the live coordinator that has a session; None where there is none."""
        owner = await cast("Awaitable[bytes | None]", self._redis.hget(keys.session(session), "owner"))
        if not owner or not await self._redis.exists(keys.coordinator_lease(_text(owner))):
            return None
        return _text(owner)

    async def ask_cancel(self, session: str) -> bool:
        """Ask the live coordinator that has a session to cancel it; False where there is none."""
        owner = await self.owner_of(session)
        if owner is None:
            return False
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.rpush(keys.asked(owner), session)
            pipe.expire(keys.asked(owner), keys.ASKED_TTL_S)
            await pipe.execute()
        return True

    async def next_asked(self, coordinator: str, within_s: float) -> str | None:
        """Return what a coordinator is asked next, see `keys.asked`; None where nothing comes within the time."""
        asked = self._redis.blpop([keys.asked(coordinator)], within_s)
        return _text(popped[1]) if (popped := await cast("Awaitable[list[bytes] | None]", asked)) else None

    async def renew_coordinator(self, coordinator: str) -> bool:
        """Renew a coordinator's lease; False where it had lapsed, or Redis has lost it."""
        lease = keys.coordinator_lease(coordinator)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(lease, "1", px=keys.COORDINATOR_LEASE_MS, get=True)
            pipe.sadd(keys.COORDINATORS, coordinator)
            pipe.expire(keys.owned(coordinator), keys.SESSION_TTL_S)
            held, *_ = await pipe.execute()
        return held is not None

    async def end_coordinator(self, coordinator: str) -> None:
        """Give the lease back: what is left of a coordinator's sessions may be adopted at once."""
        await self._redis.unlink(keys.coordinator_lease(coordinator))
        if not await self.owned_by(coordinator):
            await self.drop_coordinator(coordinator)

    async def drop_coordinator(self, coordinator: str) -> None:
        """Forget a coordinator that has ended, or whose sessions all have new owners."""
        await self._redis.unlink(keys.coordinator_lease(coordinator))
        await self._redis.srem(keys.COORDINATORS, coordinator)

    async def leaseless_coordinators(self) -> dict[str, list[str]]:
        """Return the sessions of each coordinator that has no lease now."""
        names = await self._members(keys.COORDINATORS)
        leases = await self._redis.mget([*map(keys.coordinator_lease, names)]) if names else []
        gone = [name for name, lease in zip(names, leases, strict=True) if lease is None]
        return {name: await self.owned_by(name) for name in gone}

    async def _members(self, key: str) -> list[str]:
        return sorted(_text(one) for one in await cast("Awaitable[set[bytes]]", self._redis.smembers(key)))

    async def seen_files(self, session: str) -> dict[str, str]:
        """Return a session's read metadata as it stands, for keeping it with the session."""
        found = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(keys.seen(session)))
        return {_text(path): _text(record) for path, record in found.items()}

    async def restore_seen_files(self, session: str, records: Mapping[str, str]) -> None:
        """Put read metadata back; what the session has seen since stays."""
        async with self._redis.pipeline(transaction=True) as pipe:
            for path, record in records.items():
                pipe.hsetnx(keys.seen(session), path, record)
            pipe.expire(keys.seen(session), keys.SESSION_TTL_S)
            await pipe.execute()

    async def begin_step(self, session: str, generation: int, step: int, is_last: IsLast = lambda: True) -> bool:
        """Make this the session's step; False when another coordinator has the session now, or had it and ended it.

        `is_last` is asked, in a thread, where Redis knows nothing of the session: whether no later owner has written
        anything. A Redis that was emptied and one whose session was ended in an orderly way look the same.
        """
        names, arguments = [keys.session(session)], [generation, step, keys.SESSION_TTL_S]
        return await self._unless_ended(lambda anew: self._begin_step(keys=names, args=[*arguments, anew]), is_last)

    async def progress(self, session: str) -> str | None:
        """Return a node's last words on how far the session's start is; None where there are none."""
        words = await self._redis.get(keys.progress(session))
        return None if words is None else _text(words)

    async def close_session(self, session: str, nodes: Sequence[str] = (), generation: int | None = None) -> bool:
        """Forget a session that has ended, with its places on nodes; False where it has another generation by now."""
        names = [keys.session(session), keys.seen(session), keys.session_breakers(session), *map(keys.places, nodes)]
        return bool(await self._close_session(keys=names, args=[session, "" if generation is None else generation]))

    async def narrow_seen(self, call: CallKey, path: str, left: Sequence[Lines]) -> None:
        """Take back, of what a call showed of a file, all but the lines that its answer's cut left."""
        seen, field = keys.seen(call.session), metadata.field(path)
        while True:
            value = await cast("Awaitable[bytes | None]", self._redis.hget(seen, field))
            after = metadata.narrowed(metadata.decode(value), call, left)
            if after is None:
                return
            arguments: list[str | bytes | int] = [field, value or b"", metadata.encode(after)]
            arguments += [keys.SESSION_TTL_S, metadata.MAX_FILES]
            if int(await self._store_seen(keys=[seen], args=arguments)):
                return

    async def fence(self, call_keys: Sequence[CallKey]) -> list[bool]:
        """Keep calls that did not start from ever starting; return for each whether it is fenced (else it started)."""
        if not call_keys:
            return []
        done = await self._fence(keys=[keys.claim(str(key)) for key in call_keys], args=[keys.CLAIM_TTL_S])
        return [bool(int(one)) for one in done]

    async def cancel(self, call_keys: Sequence[CallKey]) -> list[bool]:
        """Fence calls of one session, all others of it that have not started included; return as `fence` does."""
        if not call_keys:
            return []
        names = [keys.session(call_keys[0].session), *[keys.claim(str(key)) for key in call_keys]]
        done = await self._cancel(keys=names, args=[call_keys[0].generation, keys.CLAIM_TTL_S])
        return [bool(int(one)) for one in done]

    async def is_claimed(self, key: CallKey) -> bool:
        """Return whether a worker has started this call; a fence is no claim."""
        held = await self._redis.get(keys.claim(str(key)))
        return held is not None and _text(held) != scripts.FENCED

    async def give_place(self, node: str, session: str) -> None:
        """Give the session's room back."""
        await self._redis.zrem(keys.places(node), session)

    async def take_lanes(self, node: str, limit: int, holders: Sequence[str], session: str = "") -> tuple[int, str]:
        """Take lanes for as many of the holders, from the first, as fit below the limit.

        Returns how many, or `NO_PLACE` where a `session` is named that has none here, and the life of Redis (`run_id`).
        """
        names = [keys.lanes(node), keys.places(node), keys.lanes_over(node)]
        got, run_id = await self._take_in_life(keys=names, args=[limit, LANE_TTL_S, *holders, session])
        return int(got), _text(run_id)

    async def give_lanes(self, node: str, holders: Sequence[str], over: int = 0) -> None:
        """Give lanes back; a holder that has none is passed over. The first so many get none any more, though asked."""
        if over:
            await self._give(keys=[keys.lanes(node), keys.lanes_over(node)], args=[LANE_TTL_S, over, *holders])
        elif holders:
            await self._redis.zrem(keys.lanes(node), *holders)

    async def take_errands(self, kind: str, node: str, limit: int, holders: Sequence[str]) -> int:
        """Return how many seats were taken for what is asked of a node beside calls; they end soon, or are renewed."""
        return int(await self._take(keys=[keys.errands(node, kind)], args=[limit, ERRAND_TTL_S, *holders]))

    async def give_errands(self, kind: str, node: str, holders: Sequence[str]) -> None:
        """Say that errands are over; one that is not known is passed over."""
        if holders:
            await self._redis.zrem(keys.errands(node, kind), *holders)

    async def grant(self, session: str, digest: str) -> None:
        """Leave a human's yes for one tool with these very arguments, to be used once by the worker."""
        await self._redis.set(keys.grant(session, digest), "1", ex=keys.GRANT_TTL_S)

    async def withdraw_grants(self, session: str, digests: Collection[str]) -> None:
        """Take back what no worker has used."""
        if digests:
            await self._redis.unlink(*[keys.grant(session, digest) for digest in digests])

    async def forget_replies(self, coordinator: str) -> None:
        """Drop the reply stream of a coordinator that ends."""
        await self._redis.unlink(keys.reply_stream(coordinator))

    async def forget_calls(self, call_keys: Sequence[CallKey]) -> None:
        """Drop the claims of calls whose answers are in the transcript and whose session has ended."""
        if call_keys:
            await self._redis.unlink(*[keys.claim(str(key)) for key in call_keys])


def _view(life: bytes | str | None, lease: bytes | str | None) -> NodeView | None:
    """Return a node; None where nothing is known, or it is of a release that says what this one does not know."""
    if life is None:
        return None
    try:
        parsed = NodeLife.model_validate_json(life)
    except ValidationError:
        return None
    return NodeView(parsed, is_leased=lease is not None and _text(lease) == parsed.incarnation)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
