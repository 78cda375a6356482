"""Make sessions, each key's but once: API → admission → **making** → floor."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.service.admission import Admission
from coordinator.service.entries import Entry, Index
from coordinator.service.floor import Floor
from coordinator.service.principals import Principal
from coordinator.service.records import KeyedSession, SessionRecord, claim_key, release_key, write_record
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from coordinator.service.wanted import NewSession, Webhook
from coordinator.session.request import SessionRequest, new_session_id

NODES_S = 1.0
"""How long Redis is asked which profiles there are; without its answer the node says that there is none."""
MADE_S = 20.0
"""How long another server is waited for that makes the session of a key: less than clients wait for an answer."""
AGAIN_S = 0.1


class Maker:
    """Makes the sessions of one process.

    Args:
        cluster: Its volume is where they are kept.
        admission: What may be had.
        index: All sessions that are known.
        floor: Where they wait for their turn.
    """

    def __init__(self, cluster: Cluster, admission: Admission, index: Index, floor: Floor) -> None:
        self._state_dir = cluster.state_dir
        self._coordinator = cluster.ownership.coordinator
        self._store = cluster.store
        self._wishes = cluster.wishes
        self._admission = admission
        self._index = index
        self._floor = floor
        self._making: dict[tuple[str, str], asyncio.Lock] = {}

    async def create(self, wanted: NewSession, principal: Principal) -> tuple[Entry, bool]:
        """Return the session, and whether it is a new one.

        Raises:
            Refused: it may not be had, or its idempotency key stands for another one.
        """
        self._floor.demand_open()

        async def make(session_id: str) -> Entry:
            # Not before the key is looked at: what a session was made from, as an archive, may be gone by now.
            request = await asyncio.to_thread(self._admission.admit, wanted, principal)
            if wanted.profile is not None:
                await self._demand_profile(wanted.profile)
            return await self._make(session_id, wanted, request, principal)

        return await self.once(wanted.idempotency_key, principal, wanted.digest, make)

    async def _demand_profile(self, name: str) -> None:
        """Return unless all nodes tell which profiles they know, and none knows this one.

        Raises:
            Refused: so it is; the session would fail at its node.
        """
        try:
            async with asyncio.timeout(NODES_S):
                told = [set(view.life.profiles) for view in await self._store.nodes()]
        except (RedisError, OSError, TimeoutError):
            return
        if told and all(told) and not any(name in profiles for profiles in told):
            fix = f"There are {', '.join(sorted(set[str]().union(*told)))}; GET /v1/nodes has those of each node."
            raise Refused(Code.INVALID, f"profile: no node has {name!r}.", fix)

    async def once(
        self,
        key: str | None,
        principal: Principal,
        digest: Callable[[str], str],
        make: Callable[[str], Awaitable[Entry]],
    ) -> tuple[Entry, bool]:
        """Return what `make` makes under a new id, or what it made before under this key; and whether it is new.

        Args:
            key: The idempotency key; None for none.
            principal: Whose key it is.
            digest: Takes a salt and tells what is wanted from other things.
            make: Makes it under an id.

        Raises:
            Refused: the key stands for another one, or `make` refuses, or another server takes long to make it.
            RedisError: it may be made by another server, and Redis does not say whether that one lives.
        """
        if key is None:
            return await make(new_session_id()), True
        # Two requests with one key that come at once: the second waits for what the first makes.
        lock = self._making.setdefault((principal.name, key), asyncio.Lock())
        try:
            async with lock:
                return await self._make_once(key, principal, digest, make)
        finally:
            if not lock.locked():
                self._making.pop((principal.name, key), None)

    async def _make_once(
        self, key: str, principal: Principal, digest: Callable[[str], str], make: Callable[[str], Awaitable[Entry]]
    ) -> tuple[Entry, bool]:
        loop = asyncio.get_running_loop()
        salt, deadline = secrets.token_hex(8), loop.time() + MADE_S
        ours = KeyedSession(session_id=new_session_id(), salt=salt, digest=digest(salt), maker=self._coordinator)
        while True:
            # Claimed again and again: another server that makes nothing of it after all gives the key back.
            keyed = await on_volume(claim_key, self._state_dir, principal.name, key, ours)
            if keyed.digest != digest(keyed.salt):
                words = f"The idempotency key {key!r} stands for session {keyed.session_id}, asked for otherwise."
                raise Refused(Code.CONFLICT, words, "Send the same body, or another key.")
            known = await asyncio.to_thread(self._index.get, keyed.session_id)
            if known is not None:
                return known, False
            if not await self._is_made_elsewhere(keyed):
                break
            if loop.time() > deadline:
                words = f"The session of the idempotency key {key!r} is just being made by another server."
                raise Refused(Code.UNAVAILABLE, words, "Ask again with the same key.", retry_after_s=2)
            await asyncio.sleep(AGAIN_S)
        try:
            return await make(keyed.session_id), True
        except (Refused, RedisError):
            # Nothing was made: the key must not stand in the way of the next try, which may come to another server.
            await on_volume(release_key, self._state_dir, principal.name, key)
            raise

    async def _is_made_elsewhere(self, keyed: KeyedSession) -> bool:
        if keyed.maker in ("", self._coordinator):
            return False
        return await self._wishes.owner_of(keyed.session_id, keyed.maker) is not None

    async def _make(self, session_id: str, wanted: NewSession, request: SessionRequest, principal: Principal) -> Entry:
        # Asked here as well: a session that has no model must not be kept.
        self._floor.model_of(wanted.loop, wanted.model)
        record = SessionRecord(
            session_id=session_id,
            principal=principal.name,
            created_at=datetime.now(UTC),
            labels=wanted.labels,
            loop=wanted.loop,
            wanted=wanted.model_copy(update={"webhook": None}),
            webhook=signed(wanted.webhook),
            coordinator=self._coordinator,
        )
        entry = Entry(record, self._state_dir / "sessions" / session_id, is_ours=True)
        async with self._floor.quotas.room(principal, session_id):
            await on_volume(_keep, entry)
            await self._floor.begin(entry, wanted, request, principal)
        return entry


def signed(webhook: Webhook | None) -> Webhook | None:
    """Return the webhook with a secret, made where none was given."""
    if webhook is None or webhook.secret is not None:
        return webhook
    return webhook.model_copy(update={"secret": secrets.token_urlsafe(32)})


def _keep(entry: Entry) -> None:
    entry.directory.mkdir(parents=True)
    write_record(entry.directory, entry.record)
