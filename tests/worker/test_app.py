"""The Celery app's addresses and settings, with a real Redis behind them."""

import contextlib
import ssl
import time
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from worker.app import BACKEND, backend_url, broker_url, create_app
from worker.contract import keys
from worker.contract.orders import CALL_TASK
from worker.contract.replies import ReplyStreamBackend


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = create_app(redis_url)
    yield app
    app.close()


@pytest.mark.parametrize(
    ("url", "broker", "backend"),
    [
        ("redis://host:6379/2", "redis://host:6379/2", "redis://host:6379/2"),
        ("redis://:pw@host/0", "redis://:pw@host/0", "redis://:pw@host/0"),
        ("rediss://host:6380/0", "rediss://host:6380/0", "rediss://host:6380/0?ssl_cert_reqs=required"),
        (
            "rediss://h/0?ssl_ca_certs=/c",
            "rediss://h/0?ssl_ca_certs=/c",
            "rediss://h/0?ssl_ca_certs=/c&ssl_cert_reqs=required",
        ),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock", "socket:///run/r.sock"),
        ("unix:///run/unix://odd", "redis+socket:///run/unix://odd", "socket:///run/unix://odd"),
    ],
)
def test_an_address_has_the_form_that_each_side_of_celery_reads(url: str, broker: str, backend: str) -> None:
    assert broker_url(url) == broker
    assert backend_url(url) == f"{BACKEND}+{backend}"


def test_the_backend_is_the_reply_stream_and_answers(app: Celery) -> None:
    assert isinstance(app.backend, ReplyStreamBackend)
    assert app.backend.client.ping()
    app.backend.client.close()


def test_a_redis_with_tls_is_an_address_that_celery_takes() -> None:
    app = create_app("rediss://127.0.0.1:1/0")
    try:
        assert app.backend.connparams["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    finally:
        app.close()


def test_a_task_sent_by_name_lies_in_its_nodes_queue(app: Celery, redis_client: redis.Redis) -> None:
    app.signature(CALL_TASK, kwargs={"order": {}}, immutable=True).set(queue=keys.queue("a")).apply_async()

    assert redis_client.llen(keys.queue("a")) == 1


def test_sending_keeps_no_trace_of_a_task_but_its_message(app: Celery, redis_client: redis.Redis) -> None:
    app.signature(CALL_TASK, kwargs={}, immutable=True).set(queue=keys.queue("a"), reply_to="c1").apply_async()

    assert redis_client.keys() == [keys.queue("a").encode()]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("accept_content", ["json"]),
        ("result_accept_content", ["json"]),
        ("task_publish_retry", False),
        ("task_acks_late", False),
        ("worker_prefetch_multiplier", 1),
    ],
)
def test_what_a_call_running_once_rests_on_is_set(app: Celery, setting: str, value: object) -> None:
    assert app.conf[setting] == value


def test_what_a_node_is_sent_and_all_that_comes_with_it_goes_by_itself(app: Celery, redis_client: redis.Redis) -> None:
    queue, heard = keys.queue("gone"), list[object]()
    with app.connection_for_read() as connection, connection.channel() as channel:
        node = app.control.mailbox.Node("sandhog@gone", state=None, channel=channel)
        node.handlers["hear"] = lambda state, word: heard.append(word)
        with node.listen(), app.amqp.TaskConsumer(channel, queues=[app.amqp.queues[queue]]) as consumer:
            consumer.register_callback(lambda body, message: heard.append("order"))
            app.signature(CALL_TASK, kwargs={"order": {}}, immutable=True).set(queue=queue).apply_async()
            until = time.monotonic() + 20
            while set(heard) != {"order", "all"} and time.monotonic() < until:
                # It is heard by whoever listens by then.
                app.control.broadcast("hear", {"word": "all"}, destination=["sandhog@gone"], reply=False)
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=1)
    # Nobody reads it any more.
    app.signature(CALL_TASK, kwargs={"order": {}}, immutable=True).set(queue=queue).apply_async()

    assert set(heard) == {"order", "all"}
    assert redis_client.keys("*") == [queue.encode()]
    assert 0 < int(redis_client.ttl(queue)) <= keys.QUEUE_TTL_S
