"""A node's lease on a real Redis, and the end it shares with its owner."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from worker.contract import keys
from worker.contract.orders import NodeLife
from worker.node import Lease, watch_owner
from worker.wiring import connect

Until = Callable[..., None]
LIFE = NodeLife(node="a", incarnation="a-1", places=2, lanes=8, pid=7)


@pytest.fixture
def lease(redis_url: str) -> Iterator[Lease]:
    """A lease that has been written."""
    with connect(redis_url) as client:
        lease = Lease(client, LIFE)
        lease.start()
        yield lease
        lease.close()


@pytest.mark.usefixtures("lease")
def test_a_started_lease_is_written_at_once(redis_client: redis.Redis) -> None:
    assert redis_client.get(keys.lease("a")) == b"a-1"
    assert 0 < int(redis_client.pttl(keys.lease("a"))) <= keys.LEASE_MS
    assert redis_client.smembers(keys.NODES) == {b"a"}


@pytest.mark.usefixtures("lease")
def test_the_nodes_description_outlives_the_lease(redis_client: redis.Redis) -> None:
    described = redis_client.get(keys.node("a"))

    assert isinstance(described, bytes)
    assert NodeLife.model_validate_json(described) == LIFE
    assert int(redis_client.pttl(keys.node("a"))) > keys.LEASE_MS


@pytest.mark.usefixtures("lease")
def test_it_is_renewed(redis_client: redis.Redis, until: Until) -> None:
    redis_client.pexpire(keys.lease("a"), 1)
    until(lambda: not redis_client.exists(keys.lease("a")), "the lease lapsed", timeout_s=0.5)

    until(lambda: redis_client.get(keys.lease("a")) == b"a-1", "the lease is renewed", timeout_s=3.0)


@pytest.mark.usefixtures("lease")
def test_it_is_renewed_after_its_connection_was_cut(redis_client: redis.Redis, until: Until) -> None:
    assert redis_client.client_kill_filter(_type="normal", skipme=True) >= 1
    redis_client.delete(keys.lease("a"))

    until(lambda: redis_client.get(keys.lease("a")) == b"a-1", "the lease is renewed", timeout_s=5.0)


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_redis_that_may_have_lost_something_is_told_what_was_in_it_before_the_lease(
    redis_client: redis.Redis, redis_url: str, until: Until, is_emptied: bool
) -> None:
    leases: list[object] = []
    failures = [redis.ConnectionError("away again")]

    def on_lost() -> None:
        leases.append(redis_client.get(keys.lease("a")))
        if len(leases) > 1 and failures:
            raise failures.pop()

    with connect(redis_url) as client:
        lease = Lease(client, LIFE, on_lost=on_lost)
        lease.start()
        assert leases == [None]
        if is_emptied:
            redis_client.flushall()
        else:
            # Another life of Redis, which had the lease on its disk.
            lease._written_to = "the life before"
        until(lambda: len(leases) == 3, "what failed is tried again")
        until(lambda: redis_client.get(keys.lease("a")) == b"a-1", "the lease is written")
        until(lambda: redis_client.pttl(keys.lease("a")) > keys.LEASE_MS - 900, "it is renewed", 5.0)
        lease.close()

    assert len(leases) == 3
    if is_emptied:
        assert leases == [None] * 3


def test_closing_takes_everything_back_and_ends_the_thread(redis_client: redis.Redis, redis_url: str) -> None:
    before = threading.active_count()
    with connect(redis_url) as client:
        lease = Lease(client, LIFE)
        lease.start()
        assert threading.active_count() == before + 1
        lease.close()

    assert threading.active_count() == before
    assert redis_client.dbsize() == 0


def test_a_node_that_has_left_has_no_places_that_anybody_could_forget(lease: Lease, redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.places("a"), {"s": 2e9})
    lease.close()
    assert redis_client.exists(keys.places("a")) == 0


def test_a_lease_that_is_another_lifes_by_now_is_left_alone(redis_client: redis.Redis, redis_url: str) -> None:
    with connect(redis_url) as client:
        old = Lease(client, LIFE)
        new = Lease(client, LIFE.model_copy(update={"incarnation": "a-2"}))
        old.start()
        new.start()
        redis_client.zadd(keys.places("a"), {"s": 2e9})
        old.close()

        assert redis_client.get(keys.lease("a")) == b"a-2"
        assert redis_client.zcard(keys.places("a")) == 1
        assert b"a-2" in (redis_client.get(keys.node("a")) or b"")
        assert redis_client.smembers(keys.NODES) == {b"a"}
        new.close()

    assert redis_client.dbsize() == 0


def test_a_description_of_another_life_is_left_though_its_lease_has_lapsed(
    redis_client: redis.Redis, redis_url: str
) -> None:
    with connect(redis_url) as client:
        old = Lease(client, LIFE)
        old.start()
        redis_client.set(keys.node("a"), LIFE.model_copy(update={"incarnation": "a-2"}).model_dump_json())
        redis_client.set(keys.lease("a"), "a-2")
        old._stop.set()
        redis_client.delete(keys.lease("a"))
        old.close()

    assert redis_client.exists(keys.node("a")) == 1


def test_a_process_that_lost_its_name_to_another_does_not_take_it_back(
    redis_client: redis.Redis, redis_url: str, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    lapsed = threading.Event()
    with connect(redis_url) as client:
        lease = Lease(client, LIFE.model_copy(update={"freeze_s": 1.5}), on_lapse=lapsed.set)
        lease.start()
        redis_client.set(keys.lease("a"), "a-2")

        assert lapsed.wait(60)

        assert redis_client.get(keys.lease("a")) == b"a-2"
        assert "another process" in caplog.text
        lease.close()


def test_a_lease_that_stays_away_lapses_once_and_comes_back(redis_client: redis.Redis, redis_url: str) -> None:
    told: list[str] = []
    lapsed, returned = threading.Event(), threading.Event()

    def on_lapse() -> None:
        told.append("lapse")
        lapsed.set()

    def on_return() -> None:
        told.append("return")
        returned.set()

    with connect(redis_url) as client:
        lease = Lease(client, LIFE.model_copy(update={"freeze_s": 1.5}), on_lapse=on_lapse, on_return=on_return)
        lease.start()
        path = client.connection_pool.connection_kwargs["path"]
        client.connection_pool.connection_kwargs["path"] = "/nonexistent/socket"
        client.connection_pool.disconnect()
        client.connection_pool.reset()
        assert lapsed.wait(60)
        assert not returned.is_set()
        client.connection_pool.connection_kwargs["path"] = path
        client.connection_pool.reset()
        assert returned.wait(60)
        lease.close()

    assert told == ["lapse", "return"]


def test_no_redis_at_the_start_is_an_error() -> None:
    with connect("unix:///nonexistent/socket") as client, pytest.raises(redis.ConnectionError):
        Lease(client, LIFE).start()


def test_no_redis_at_the_end_is_none(redis_url: str) -> None:
    with connect(redis_url) as client:
        lease = Lease(client, LIFE)
        lease.start()
        client.connection_pool.connection_kwargs["path"] = "/nonexistent/socket"
        client.connection_pool.disconnect()
        client.connection_pool.reset()
        with pytest.raises(redis.ConnectionError):
            client.ping()

        lease.close()


def test_the_owners_end_is_told_when_its_pipe_closes() -> None:
    ended = threading.Event()
    read_end, write_end = os.pipe()
    thread = watch_owner(read_end, ended.set)
    os.write(write_end, b"x")
    assert not ended.wait(0.1)

    os.close(write_end)

    assert ended.wait(60)
    thread.join(60)
    os.close(read_end)


def test_the_owners_end_is_told_when_it_is_killed() -> None:
    ended = threading.Event()
    read_end, write_end = os.pipe()
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[write_end])
    os.close(write_end)
    thread = watch_owner(read_end, ended.set)
    assert owner.poll() is None
    assert not ended.wait(0.1)

    os.kill(owner.pid, signal.SIGKILL)

    assert ended.wait(60)
    thread.join(60)
    os.close(read_end)
    owner.communicate()
