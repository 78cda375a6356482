"""The coordinator's side of the shared state, on a real Redis."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import redis

from coordinator.cluster.store import Store, connect
from coordinator.session.reading import is_last_owner
from coordinator.session.transcript import segment_path
from worker.contract import keys, scripts
from worker.contract.orders import CallKey, NodeLife

LIFE = NodeLife(node="a", incarnation="a-1", places=2, lanes=8)
KEY = CallKey(session="s1", generation=1, step=1, index=0)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    client = connect(redis_url)
    yield Store(client)
    await client.aclose()


def register(client: redis.Redis, life: NodeLife, lease: str | None = None) -> None:
    client.sadd(keys.NODES, life.node)
    client.set(keys.node(life.node), life.model_dump_json())
    client.set(keys.lease(life.node), lease or life.incarnation)


def claim(client: redis.Redis, key: CallKey) -> bytes:
    """What a worker does."""
    names = [keys.claim(str(key)), keys.session(key.session)]
    answer = client.register_script(scripts.CLAIM)(keys=names, args=["t", key.generation, key.step, 60])
    assert isinstance(answer, bytes)
    return answer


class TestNodes:
    async def test_a_leased_node_is_seen(self, store: Store, redis_client: redis.Redis) -> None:
        register(redis_client, LIFE)

        view = await store.node("a")

        assert view is not None
        assert view.life == LIFE
        assert view.is_leased

    async def test_a_node_that_never_was_is_none(self, store: Store) -> None:
        assert await store.node("a") is None
        assert await store.nodes() == []

    async def test_without_a_lease_it_is_seen_as_unleased(self, store: Store, redis_client: redis.Redis) -> None:
        register(redis_client, LIFE)
        redis_client.delete(keys.lease("a"))

        view = await store.node("a")

        assert view is not None
        assert not view.is_leased

    async def test_a_lease_of_another_life_is_none_of_this_one(self, store: Store, redis_client: redis.Redis) -> None:
        register(redis_client, LIFE, lease="a-2")

        view = await store.node("a")

        assert view is not None
        assert not view.is_leased

    async def test_all_nodes_come_by_name_and_forgotten_ones_not_at_all(
        self, store: Store, redis_client: redis.Redis
    ) -> None:
        for name in ("b", "a"):
            register(redis_client, LIFE.model_copy(update={"node": name}))
        redis_client.sadd(keys.NODES, "expired")

        assert [view.life.node for view in await store.nodes()] == ["a", "b"]


class TestSessions:
    async def test_a_new_owner_fences_the_older_one(self, store: Store) -> None:
        first = await store.open_session("s1")
        assert await store.begin_step("s1", first, 1)

        second = await store.open_session("s1")

        assert second == first + 1
        assert not await store.begin_step("s1", first, 2)
        assert await store.begin_step("s1", second, 1)

    async def test_an_owner_that_slept_does_not_begin_anew_what_a_later_one_has_ended(
        self, store: Store, tmp_path: Path
    ) -> None:
        first = await store.open_session("s1")
        assert await store.begin_step("s1", first, 1)
        second = await store.open_session("s1")
        segment_path(tmp_path, "s1", first).touch()
        segment_path(tmp_path, "s1", second).touch()
        await store.close_session("s1")

        old, new = partial(is_last_owner, tmp_path, first), partial(is_last_owner, tmp_path, second)
        for _ in range(2):
            assert not await store.begin_step("s1", first, 2, old)
            assert not await store.own_session("s1", first, "old", is_adoptable=True, is_last=old)
        # A Redis that was emptied knows as little, and the session is still the second one's.
        assert await store.begin_step("s1", second, 2, new)
        assert not await store.begin_step("s1", first, 2, old)

    async def test_a_session_that_redis_has_lost_is_written_back_by_its_owner(
        self, store: Store, redis_client: redis.Redis, tmp_path: Path
    ) -> None:
        first = await store.open_session("s1")
        segment_path(tmp_path, "s1", first).touch()
        redis_client.flushall()

        assert await store.own_session(
            "s1", first, "me", is_adoptable=True, is_last=partial(is_last_owner, tmp_path, first)
        )
        assert redis_client.hget(keys.session("s1"), "owner") == b"me"
        assert redis_client.smembers(keys.owned("me")) == {b"s1"}

    async def test_a_generation_from_the_transcript_is_the_least(self, store: Store) -> None:
        assert await store.open_session("s1", least_generation=5) == 5

    async def test_a_closed_session_claims_nothing_more(self, store: Store, redis_client: redis.Redis) -> None:
        await store.begin_step("s1", 1, 1)
        assert claim(redis_client, KEY) == b"granted"

        await store.close_session("s1")

        assert claim(redis_client, KEY.next_attempt()) == b"stale_generation"


class TestCalls:
    async def test_a_fence_holds_before_a_claim_and_not_after(self, store: Store, redis_client: redis.Redis) -> None:
        await store.begin_step("s1", 1, 1)
        other = KEY.next_attempt()
        claim(redis_client, KEY)

        assert await store.fence([KEY, other]) == [False, True]
        assert claim(redis_client, other) == b"fenced"

    async def test_a_seat_that_an_emptied_redis_is_told_of_expires(
        self, store: Store, redis_client: redis.Redis
    ) -> None:
        await store.seat_session("s1", "n")
        assert redis_client.ttl(keys.session("s1")) > 0

    async def test_fencing_nothing_is_nothing(self, store: Store) -> None:
        assert await store.fence([]) == []

    async def test_a_claim_is_seen(self, store: Store, redis_client: redis.Redis) -> None:
        await store.begin_step("s1", 1, 1)
        assert not await store.is_claimed(KEY)

        claim(redis_client, KEY)

        assert await store.is_claimed(KEY)
        assert not await store.is_claimed(KEY.next_attempt())

    async def test_a_fence_is_no_claim(self, store: Store) -> None:
        await store.fence([KEY])

        assert not await store.is_claimed(KEY)

    async def test_a_cancelled_session_starts_no_other_call_either(
        self, store: Store, redis_client: redis.Redis
    ) -> None:
        await store.begin_step("s1", 1, 1)
        running, waiting = KEY, KEY.model_copy(update={"index": 1})
        claim(redis_client, running)

        assert await store.cancel([running]) == [False]
        assert claim(redis_client, waiting) == b"cancelled", "a node must not go on with the chain's next link"
        assert await store.cancel([running, waiting]) == [False, True]

    async def test_another_generations_cancel_leaves_the_session_alone(
        self, store: Store, redis_client: redis.Redis
    ) -> None:
        await store.begin_step("s1", 2, 1)

        await store.cancel([KEY])

        assert claim(redis_client, KEY.model_copy(update={"generation": 2})) == b"granted"

    async def test_grants_and_replies_are_taken_back(self, store: Store, redis_client: redis.Redis) -> None:
        await store.grant("s1", "d1")
        redis_client.xadd(keys.reply_stream("c1"), {"d": "{}"})

        await store.withdraw_grants("s1", {"d1", "used"})
        await store.withdraw_grants("s1", set())
        await store.forget_replies("c1")

        assert redis_client.dbsize() == 0

    async def test_forgotten_calls_leave_no_key(self, store: Store, redis_client: redis.Redis) -> None:
        await store.fence([KEY, KEY.next_attempt()])
        await store.forget_calls([KEY, KEY.next_attempt()])
        await store.forget_calls([])

        assert redis_client.dbsize() == 0

    async def test_a_grant_is_left_for_the_worker_and_expires(self, store: Store, redis_client: redis.Redis) -> None:
        await store.grant("s1", "digest")

        assert 0 < int(redis_client.ttl(keys.grant("s1", "digest"))) <= keys.GRANT_TTL_S


class TestLanes:
    async def test_lanes_are_taken_from_the_first_and_given_back(self, store: Store, redis_client: redis.Redis) -> None:
        life = await store.run_id()
        assert await store.take_lanes("a", 3, ["x"]) == (1, life)
        assert await store.take_lanes("a", 3, ["1", "2", "3"]) == (2, life)
        assert await store.take_lanes("a", 3, ["3"]) == (0, life)
        assert await store.take_lanes("a", 9, ["3"], "s") == (scripts.NO_PLACE, life)

        await store.give_lanes("a", ["1", "unknown"])
        await store.give_lanes("a", [])

        assert await store.take_lanes("a", 3, ["3"]) == (1, life)
        assert redis_client.zcard(keys.lanes("a")) == 3


async def test_the_life_of_redis_has_a_name_that_stays(store: Store, redis_client: redis.Redis) -> None:
    life = await store.run_id()
    assert life == await store.run_id()
    assert life.startswith(redis_client.info("server")["run_id"])


async def test_a_redis_that_was_emptied_has_another_life(store: Store, redis_client: redis.Redis) -> None:
    """Without a claim a call has not run: not so where all claims are gone."""
    life = await store.run_id()
    assert await store.take_lanes("a", 3, ["1"]) == (1, life)

    redis_client.flushall()

    _, after = await store.take_lanes("a", 3, ["1"])
    assert after not in ("", life)
    assert after == await store.run_id()
