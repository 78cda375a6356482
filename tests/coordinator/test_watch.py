"""What the watch believes of nodes: only what a Redis that answers has said."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis
from redis.exceptions import RedisError

from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import DESCRIBED_S, ENDING_S, EVERY_S, QUIET_S, SILENT_S, NodeHealth, Watch
from worker.contract import keys
from worker.contract.orders import NodeLife

LIFE = NodeLife(node="a", incarnation="a-1", places=2, lanes=8)


class Clock:
    """A clock that is set by hand."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A client's way to Redis that can be cut and joined again."""

    def __init__(self, url: str) -> None:
        self.client = connect(url)
        self.store = Store(self.client)
        self._path = self.client.connection_pool.connection_kwargs["path"]

    async def lead_to(self, path: str) -> None:
        pool = self.client.connection_pool
        await pool.disconnect()
        pool.reset()  # type: ignore[no-untyped-call]
        pool.connection_kwargs["path"] = path

    async def cut(self) -> None:
        await self.lead_to("/nonexistent/socket")

    async def join(self) -> None:
        await self.lead_to(self._path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    line = Line(redis_url)
    yield line
    await line.client.aclose()


@pytest.fixture
def watch(line: Line, clock: Clock) -> Watch:
    """A watch that looks only when it is told to and follows node `a`."""
    watch = Watch(line.store, clock)
    watch.follow("a", "a-1")
    return watch


def register(client: redis.Redis, incarnation: str = "a-1") -> None:
    life = LIFE.model_copy(update={"incarnation": incarnation})
    client.set(keys.node("a"), life.model_dump_json())
    client.set(keys.lease("a"), incarnation)


async def look(watch: Watch, clock: Clock, times: int = 1) -> None:
    for _ in range(times):
        clock.now += EVERY_S
        await watch.poll()


async def test_a_leased_node_is_healthy(watch: Watch, clock: Clock, redis_client: redis.Redis) -> None:
    register(redis_client)
    await look(watch, clock, 3)

    assert watch.health("a") == NodeHealth("a-1", 0.0)


async def test_time_without_a_lease_counts_while_redis_answers(
    watch: Watch, clock: Clock, redis_client: redis.Redis
) -> None:
    register(redis_client)
    await look(watch, clock)
    redis_client.delete(keys.lease("a"))
    await look(watch, clock, 4)

    assert watch.health("a") == NodeHealth(None, 4 * EVERY_S)


async def test_a_lease_that_is_back_clears_the_suspicion(watch: Watch, clock: Clock, redis_client: redis.Redis) -> None:
    await look(watch, clock, 3)
    assert watch.health("a").leaseless_s > 0
    register(redis_client)
    await look(watch, clock)

    assert watch.health("a") == NodeHealth("a-1", 0.0)


async def test_an_outage_of_redis_counts_for_nobodys_death(watch: Watch, clock: Clock, line: Line) -> None:
    await look(watch, clock, 2)
    before = watch.health("a").leaseless_s
    await line.cut()
    for _ in range(100):
        with pytest.raises(RedisError):
            await look(watch, clock)
    assert watch.health("a").leaseless_s == before

    await line.join()
    await look(watch, clock)

    # Nothing yet: whoever lives writes his lease back first.
    assert watch.health("a").leaseless_s == before
    await look(watch, clock, int(QUIET_S / EVERY_S))
    assert 0 < watch.health("a").leaseless_s - before <= 2 * EVERY_S


async def test_an_outage_leaves_what_was_known(
    watch: Watch, clock: Clock, line: Line, redis_client: redis.Redis
) -> None:
    register(redis_client)
    await look(watch, clock)
    run_id = watch.run_id
    await line.cut()
    with pytest.raises(RedisError):
        await look(watch, clock)

    assert watch.health("a") == NodeHealth("a-1", 0.0)
    assert watch.run_id == run_id is not None


async def test_the_first_look_counts_nothing(watch: Watch, clock: Clock) -> None:
    clock.now += 500
    await watch.poll()

    assert watch.health("a") == NodeHealth(None, 0.0)


async def test_a_new_life_of_redis_counts_nothing_and_is_seen(
    watch: Watch, clock: Clock, line: Line, second_redis: str
) -> None:
    await look(watch, clock, 2)
    before, run_id = watch.health("a").leaseless_s, watch.run_id
    await line.lead_to(second_redis)
    await look(watch, clock)

    assert watch.run_id not in (None, run_id)
    assert watch.health("a").leaseless_s == before

    await look(watch, clock, int(QUIET_S / EVERY_S))
    assert 0 < watch.health("a").leaseless_s - before <= 2 * EVERY_S


async def test_a_changed_incarnation_is_seen(watch: Watch, clock: Clock, redis_client: redis.Redis) -> None:
    register(redis_client)
    await look(watch, clock)
    register(redis_client, "a-2")
    await look(watch, clock)

    assert watch.health("a") == NodeHealth("a-2", 0.0)


async def test_one_answer_holds_the_leases_of_all_nodes(line: Line, clock: Clock, redis_client: redis.Redis) -> None:
    watch = Watch(line.store, clock)
    names = [f"n{number}" for number in range(50)]
    for name in names:
        watch.follow(name, "first")
        redis_client.set(keys.node(name), LIFE.model_copy(update={"node": name}).model_dump_json())
        redis_client.set(keys.lease(name), LIFE.incarnation)
    await look(watch, clock)
    redis_client.config_resetstat()
    await look(watch, clock)

    assert redis_client.info("commandstats")["cmdstat_mget"]["calls"] == 1
    assert {watch.health(name) for name in names} == {NodeHealth(LIFE.incarnation, 0.0)}


async def test_following_again_forgets_nothing(watch: Watch, clock: Clock, redis_client: redis.Redis) -> None:
    register(redis_client, "a-2")
    await look(watch, clock)
    watch.follow("a", "a-1")

    assert watch.health("a").incarnation == "a-2"


def test_a_node_nobody_follows_has_no_lease(watch: Watch) -> None:
    assert watch.health("b") == NodeHealth(None, 0.0)


async def test_redis_answers_from_the_first_answer_until_it_stays_away(watch: Watch, clock: Clock, line: Line) -> None:
    assert not watch.is_redis_answering
    assert watch.run_id is None
    await look(watch, clock)
    assert watch.is_redis_answering

    await line.cut()
    with pytest.raises(RedisError):
        await look(watch, clock)
    clock.now += SILENT_S
    assert not watch.is_redis_answering

    await line.join()
    await look(watch, clock)
    assert watch.is_redis_answering


async def test_it_looks_by_itself_and_survives_a_cut(
    line: Line, redis_client: redis.Redis, until: Callable[..., None]
) -> None:
    async with Watch(line.store) as watch:
        watch.follow("a", "a-0")
        await asyncio.to_thread(until, lambda: watch.run_id is not None, "Redis was asked")
        redis_client.client_kill_filter(_type="normal", skipme=True)
        register(redis_client)
        await asyncio.to_thread(until, lambda: watch.health("a").incarnation == "a-1", "the node is seen")


async def test_a_node_that_took_its_description_back_is_gone_sooner_than_a_lost_one(
    watch: Watch, clock: Clock, redis_client: redis.Redis
) -> None:
    register(redis_client)
    await look(watch, clock)
    redis_client.delete(keys.lease("a"))
    await look(watch, clock, int(12 / EVERY_S))
    lost = watch.health("a")
    redis_client.delete(keys.node("a"))
    await look(watch, clock)

    assert not lost.is_gone
    assert watch.health("a").is_gone


async def test_a_lost_nodes_sessions_move_only_once_its_boxes_have_stood_still_for_a_while(
    watch: Watch, clock: Clock, redis_client: redis.Redis
) -> None:
    register(redis_client)
    await look(watch, clock)
    redis_client.delete(keys.lease("a"))
    await look(watch, clock, int((LIFE.freeze_s + 12) / EVERY_S))
    assert watch.health("a").is_gone
    assert not watch.health("a").is_lost, "two boxes could write one workspace"
    await look(watch, clock, int(4 / EVERY_S))
    assert watch.health("a").is_lost


async def test_a_node_that_an_emptied_redis_does_not_know_may_only_be_cut_off(
    watch: Watch, clock: Clock, line: Line, redis_client: redis.Redis, second_redis: str
) -> None:
    register(redis_client)
    await look(watch, clock)
    await line.lead_to(second_redis)
    await look(watch, clock, int((QUIET_S + LIFE.freeze_s - 2) / EVERY_S))
    assert not watch.health("a").is_gone, "its boxes do not stand still yet"
    await look(watch, clock, int(LIFE.freeze_s / EVERY_S))
    assert watch.health("a").is_lost


async def test_a_node_that_says_that_it_ends_is_known_to_within_a_second_and_not_for_ever(
    watch: Watch, clock: Clock, redis_client: redis.Redis
) -> None:
    register(redis_client)
    await look(watch, clock)
    assert not watch.health("a").is_ending

    ending = LIFE.model_copy(update={"state": "draining"})
    redis_client.set(keys.node("a"), ending.model_dump_json())
    await look(watch, clock, int(DESCRIBED_S / EVERY_S))
    assert watch.health("a") == NodeHealth("a-1", 0.0, is_ending=True)

    clock.now += ENDING_S
    await look(watch, clock)
    assert watch.health("a") == NodeHealth("a-1", 0.0)

    # Its next life has as long.
    redis_client.set(keys.node("a"), ending.model_copy(update={"incarnation": "a-2"}).model_dump_json())
    redis_client.set(keys.lease("a"), "a-2")
    await look(watch, clock)
    assert watch.health("a").is_ending
