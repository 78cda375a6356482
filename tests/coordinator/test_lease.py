"""The lease of a coordinator whose event loop is busy, by a real Redis."""

import time

import redis

from coordinator.cluster.lease import EVERY_S, LeaseKeeper
from worker.contract import keys

LEASE = keys.coordinator_lease("c")


def stand_still(seconds: float) -> None:
    """Let the event loop do nothing for so long."""
    time.sleep(seconds)


async def test_a_busy_loop_keeps_its_lease(redis_url: str, redis_client: redis.Redis) -> None:
    async with LeaseKeeper(redis_url, "c"):
        redis_client.set(LEASE, "1", px=keys.COORDINATOR_LEASE_MS)
        stand_still(keys.COORDINATOR_LEASE_MS / 1000 + 1.0)
        assert redis_client.exists(LEASE)


async def test_a_loop_that_stands_still_loses_it(redis_url: str, redis_client: redis.Redis) -> None:
    async with LeaseKeeper(redis_url, "c", stuck_s=0.1):
        stand_still(EVERY_S)
        redis_client.set(LEASE, "1", px=1_000)
        stand_still(3.0)
        assert not redis_client.exists(LEASE)


async def test_a_lease_that_was_lost_is_not_brought_back(redis_url: str, redis_client: redis.Redis) -> None:
    async with LeaseKeeper(redis_url, "c"):
        stand_still(3 * EVERY_S)
        assert not redis_client.exists(LEASE)
