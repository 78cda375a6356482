"""What a node writes down of its places: real Redis, no boxes."""

import threading
import time

import pytest
import redis

from worker.contract import keys
from worker.places import Places


@pytest.fixture
def places(redis_client: redis.Redis) -> Places:
    return Places(redis_client, "n", 2)


def test_what_was_lost_is_written_back_and_what_is_there_is_renewed(places: Places, redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.places("n"), {"old": time.time() + 5, "on its way": 2e9})

    places.keep(lambda: ["old", "lost"])

    left = {session: redis_client.zscore(keys.places("n"), session) for session in ("old", "lost", "on its way")}
    for session in ("old", "lost"):
        assert (left[session] or 0.0) - time.time() == pytest.approx(keys.PLACE_TTL_S, abs=60)
    assert left["on its way"] == 2e9
    assert redis_client.ttl(keys.places("n")) > keys.PLACE_TTL_S - 60


def test_a_session_that_has_moved_gets_no_place_back(places: Places, redis_client: redis.Redis) -> None:
    redis_client.hset(keys.session("moved"), "node", "another")
    redis_client.hset(keys.session("here"), "node", "n")
    redis_client.hset(keys.session("unknown"), "generation", "1")

    places.keep(lambda: ["moved", "here", "unknown"])

    assert set(redis_client.zrange(keys.places("n"), 0, -1)) == {b"here", b"unknown"}


def test_a_place_that_is_given_back_while_places_are_written_stays_given_back(
    places: Places, redis_client: redis.Redis
) -> None:
    giving = threading.Thread(target=places.give_back, args=("s",))

    def look() -> list[str]:
        # Its box stands now, and goes before anything is written.
        giving.start()
        giving.join(0.3)
        return ["s", "other"]

    places.keep(look)
    giving.join(60)

    assert redis_client.zrange(keys.places("n"), 0, -1) == [b"other"]


def test_nothing_is_written_of_a_node_without_boxes(places: Places, redis_client: redis.Redis) -> None:
    places.keep(list)

    assert redis_client.dbsize() == 0
