"""Who has a session, and when somebody else may take it; on a real Redis, with a clock that is set by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.cluster.ownership import Ownership
from coordinator.cluster.store import Store, connect
from coordinator.cluster.wishes import Told, Wish, Wishes
from coordinator.session.takeover import LAPSED_S, QUIET_S, Orphan, Orphans
from worker.contract import keys

LEASE_S = keys.COORDINATOR_LEASE_MS / 1000


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    client = connect(redis_url)
    yield Store(client)
    await client.aclose()


async def owned_by(store: Store, coordinator: str, session: str = "s1") -> None:
    """Let a coordinator that has no task of its own own a session."""
    await store.renew_coordinator(coordinator)
    generation = await store.open_session(session, 1, coordinator)
    assert await store.own_session(session, generation, coordinator, is_adoptable=True)


def dies(client: redis.Redis, coordinator: str) -> None:
    client.delete(keys.coordinator_lease(coordinator))


async def look(orphans: Orphans, clock: Clock, seconds: float) -> list[Orphan]:
    found: list[Orphan] = []
    for _ in range(round(seconds)):
        clock.now += 1.0
        found = await orphans.poll()
    return found


async def test_a_session_has_one_new_owner(store: Store, redis_client: redis.Redis) -> None:
    await owned_by(store, "dead")
    assert await store.owner_of("s1") == "dead"
    assert await store.adopt_session("s1", "dead", "a", 2) == 0, "its owner lives"
    dies(redis_client, "dead")
    assert await store.owner_of("s1") is None
    redis_client.hset(keys.session("s1"), "cancelled", "1")
    assert await store.adopt_session("s1", "dead", "a", 5) == 5
    assert await store.adopt_session("s1", "dead", "b", 9) == 0
    assert redis_client.hgetall(keys.session("s1")) == {b"generation": b"5", b"step": b"0", b"owner": b"a"}
    assert not await store.own_session("s1", 1, "dead", is_adoptable=True)
    assert not await store.begin_step("s1", 1, 7)
    assert await store.leaseless_coordinators() == {"dead": []}


async def test_an_owner_that_asks_again_has_the_same_generation(store: Store, redis_client: redis.Redis) -> None:
    assert [await store.open_session("s1", 4, "a") for _ in range(2)] == [4, 4]
    assert await store.begin_step("s1", 4, 3)
    assert await store.open_session("s1", 4, "a") == 4
    assert redis_client.hget(keys.session("s1"), "step") == b"3"
    assert await store.open_session("s1", 5, "a") == 5, "it has written in the one before"
    assert await store.open_session("s1", 4, "b") == 6
    assert await store.open_session("s1", 4, "a") == 7

    await owned_by(store, "dead", "s2")
    dies(redis_client, "dead")
    for dead in ("dead", "dead", "a"):
        assert await store.adopt_session("s2", dead, "a", 2) == 2
    assert await store.adopt_session("s2", "dead", "b", 2) == 0
    for dead in ("dead", "a"):
        assert await store.adopt_session("s2", dead, "a", 3) == 0, "it has written in the one before"
    assert await store.owned_by("a") == ["s2"]
    await store.open_session("s2", 3, "by-hand")
    assert await store.adopt_session("s2", "a", "a", 2) == 0
    assert await store.owned_by("a") == []


async def test_a_session_that_was_taken_by_hand_is_nobodys_orphan(store: Store, redis_client: redis.Redis) -> None:
    await owned_by(store, "dead")
    dies(redis_client, "dead")
    await store.open_session("s1", 1, "by-hand")
    assert await store.adopt_session("s1", "dead", "a", 2) == 0
    assert await store.leaseless_coordinators() == {"dead": []}


async def test_a_dead_coordinators_sessions_are_found_soon(store: Store, redis_client: redis.Redis) -> None:
    clock = Clock()
    orphans = Orphans(store, "me", clock)
    await owned_by(store, "dead")
    assert await look(orphans, clock, LEASE_S + 1) == []
    dies(redis_client, "dead")
    assert await look(orphans, clock, 1) == []
    assert await look(orphans, clock, 1) == [Orphan("s1", "dead")]
    assert LAPSED_S <= 1.0


async def lead_to(client: Redis, path: str) -> None:
    pool = client.connection_pool
    await pool.disconnect()
    pool.reset()  # type: ignore[no-untyped-call]
    pool.connection_kwargs["path"] = path


async def test_an_outage_is_nobodys_death(store: Store, redis_client: redis.Redis, redis_server: Path) -> None:
    clock = Clock()
    client = connect(f"unix://{redis_server}")
    orphans = Orphans(Store(client), "me", clock)
    await owned_by(store, "dead")
    dies(redis_client, "dead")
    assert await look(orphans, clock, LEASE_S + 2) != []
    await lead_to(client, "/nonexistent/socket")
    for _ in range(30):
        with pytest.raises(RedisError):
            await look(orphans, clock, 1)
    await lead_to(client, str(redis_server))
    assert await look(orphans, clock, QUIET_S - 1) == []
    assert await look(orphans, clock, 4) == [Orphan("s1", "dead")]
    await client.aclose()


async def test_who_stood_still_himself_suspects_nobody(store: Store, redis_client: redis.Redis) -> None:
    clock = Clock()
    orphans = Orphans(store, "me", clock)
    await owned_by(store, "dead")
    await look(orphans, clock, LEASE_S + 1)
    dies(redis_client, "dead")
    clock.now += 100.0
    assert await look(orphans, clock, QUIET_S - 1) == []
    assert await look(orphans, clock, 4) == [Orphan("s1", "dead")]


async def test_a_coordinator_without_sessions_is_forgotten(store: Store, redis_client: redis.Redis) -> None:
    clock = Clock()
    orphans = Orphans(store, "me", clock)
    await store.renew_coordinator("idle")
    await look(orphans, clock, LEASE_S + 1)
    dies(redis_client, "idle")
    await look(orphans, clock, 3)
    await orphans.tidy()
    assert redis_client.smembers(keys.COORDINATORS) == set()


async def until_true(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.02)


async def test_ownership_is_written_back_and_its_loss_is_told(store: Store, redis_client: redis.Redis) -> None:
    lost: list[str] = []
    async with Ownership(store, "me") as ownership:
        for session in ("kept", "taken"):
            generation = await store.open_session(session, 1, "me")
            ownership.own(session, generation, is_adoptable=True, on_lost=partial(lost.append, session))
            assert await ownership.note(session)
        await until_true(lambda: bool(redis_client.exists(keys.coordinator_lease("me"))))
        redis_client.flushall()
        redis_client.hset(keys.session("taken"), mapping={"generation": "9", "owner": "other"})
        await until_true(lambda: redis_client.hget(keys.session("kept"), "owner") == b"me")
        await until_true(lambda: lost == ["taken"])
        assert redis_client.smembers(keys.owned("me")) == {b"kept"}
        await ownership.disown("kept")
        assert redis_client.smembers(keys.owned("me")) == set()


async def test_an_owner_that_slept_is_told_of_a_later_one_that_has_ended(
    store: Store, redis_client: redis.Redis
) -> None:
    lost: list[str] = []
    async with Ownership(store, "me") as ownership:
        for session, is_last in (("kept", True), ("ended", False)):
            generation = await store.open_session(session, 1, "me")
            ownership.own(
                session,
                generation,
                is_adoptable=True,
                on_lost=partial(lost.append, session),
                is_last=partial(bool, is_last),
            )
            assert await ownership.note(session)
        await until_true(lambda: bool(redis_client.exists(keys.coordinator_lease("me"))))
        redis_client.flushall()
        await until_true(lambda: lost == ["ended"])
        await until_true(lambda: redis_client.hget(keys.session("kept"), "owner") == b"me")
        assert not redis_client.exists(keys.session("ended"))


async def test_a_later_step_is_not_cancelled_with_the_one_before(store: Store, redis_client: redis.Redis) -> None:
    generation = await store.open_session("s1")
    for step, left in ((1, b"1"), (1, b"1"), (2, None)):
        assert await store.begin_step("s1", generation, step)
        if left is not None:
            redis_client.hset(keys.session("s1"), "cancelled", "1")
        assert redis_client.hget(keys.session("s1"), "cancelled") == left


async def test_what_a_session_had_seen_comes_back(store: Store, redis_client: redis.Redis) -> None:
    redis_client.hset(keys.seen("s1"), mapping={"/a": "1 x", "/b": "2 y"})
    records = await store.seen_files("s1")
    redis_client.delete(keys.seen("s1"))
    redis_client.hset(keys.seen("s1"), "/b", "3 newer")
    await store.restore_seen_files("s1", records)
    assert redis_client.hgetall(keys.seen("s1")) == {b"/a": b"1 x", b"/b": b"3 newer"}


async def test_a_redis_that_was_away_hears_later_of_what_has_ended(store: Store, redis_client: redis.Redis) -> None:
    class Away(Store):
        """Its Redis hears of no end the first times."""

        times = 2

        async def disown_session(self, session: str, owner: str) -> None:
            if self.times:
                self.times -= 1
                raise RedisError("away")
            await super().disown_session(session, owner)

    away = Away(store._redis)
    async with Ownership(away, "me") as ownership:
        for session in ("ended", "again"):
            generation = await store.open_session(session, 1, "me")
            ownership.own(session, generation, is_adoptable=True)
            assert await ownership.note(session)
            await ownership.disown(session)
        # This one has begun anew before Redis was back.
        ownership.own("again", generation, is_adoptable=True)
        async with asyncio.timeout(60):
            while redis_client.smembers(keys.owned("me")) != {b"again"}:
                await asyncio.sleep(0.02)
        away.times = 1
        await ownership.disown("again")
    assert redis_client.smembers(keys.owned("me")) == set()


async def test_what_is_owed_is_given_before_a_session_is_nobodys(store: Store, redis_client: redis.Redis) -> None:
    owned_then: list[bool] = []

    async def give() -> None:
        owned_then.append(redis_client.sismember(keys.owned("me"), "s") == 1)
        if len(owned_then) < 3:
            raise RedisError("away")

    async with Ownership(store, "me") as ownership:
        generation = await store.open_session("s", 1, "me")
        ownership.own("s", generation, is_adoptable=True)
        assert await ownership.note("s")
        ownership.owe("s", give)
        await ownership.disown("s")
        async with asyncio.timeout(60):
            while redis_client.exists(keys.owned("me")):
                await asyncio.sleep(0.02)
    assert owned_then == [True] * 3


async def test_what_others_ask_is_heard_at_once_and_also_after_its_connection_was_cut(
    store: Store, redis_client: redis.Redis
) -> None:
    heard: list[tuple[str, str]] = []
    ownership = Ownership(store, "asked")
    ownership.on_wishes = lambda session: heard.append(("look", session))
    ownership.on_told = lambda wish_id: heard.append(("told", wish_id))
    async with ownership:
        await owned_by(store, "asked")
        ownership.own("s1", 1, on_cancel=lambda: heard.append(("cancel", "s1")))
        for number in range(2):
            redis_client.rpush(keys.asked("asked"), f"{keys.LOOK}s{number}", f"{keys.TOLD}w{number}", "s1", "nobody's")
            expected = [("look", f"s{number}"), ("told", f"w{number}"), ("cancel", "s1")]
            async with asyncio.timeout(5):
                await until_true(lambda: len(heard) >= 3)
            assert heard == expected
            heard.clear()
            redis_client.client_kill_filter(_type="normal", skipme=True)


async def test_who_asks_is_woken_by_the_answer_and_need_not_look(
    store: Store, redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_S", "MAX_POLL_S"):
        monkeypatch.setattr(f"coordinator.cluster.wishes.{name}", 60.0)
    client = connect(redis_url)
    theirs, ours = Wishes(client, "theirs"), Wishes(client, "ours")
    ownership = Ownership(store, "ours")
    ownership.on_told = ours.wake
    try:
        async with ownership, asyncio.timeout(30):
            wish = Wish(kind="finish")
            await ours.send("s1", wish, "theirs")
            asking = asyncio.create_task(ours.answer(wish, 60))
            (taken,) = await theirs.take("s1")
            # It has looked once by now, and found nothing.
            await asyncio.wait({asking}, timeout=0.5)
            await theirs.tell(taken, Told(message="bye"))
            assert await asking == Told(message="bye")
    finally:
        await client.aclose()
    assert redis_client.exists(keys.told(wish.wish_id)) == 0
