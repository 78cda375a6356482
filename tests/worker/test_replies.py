"""The reply stream: the backend writes to a real Redis, `decode_reply` reads whatever is there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import states
from hypothesis import given
from hypothesis import strategies as st

from worker.app import create_app
from worker.contract import keys
from worker.contract.replies import REPLY_FIELD, TOLD, Reply, ReplyStreamBackend, decode_reply

STREAM = keys.reply_stream("c1")


@dataclass
class Request:
    """What the backend looks at of a task's request."""

    reply_to: str | None
    id: str = "t1"


@pytest.fixture
def backend(redis_url: str) -> Iterator[ReplyStreamBackend]:
    app = create_app(redis_url)
    found = app.backend
    assert isinstance(found, ReplyStreamBackend)
    yield found
    found.client.close()
    app.close()


def entries(client: redis.Redis) -> list[Reply | None]:
    rows: Any = client.xrange(STREAM)
    return [decode_reply(fields[REPLY_FIELD.encode()]) for _, fields in rows]


def test_a_result_is_appended_to_its_coordinators_stream(
    backend: ReplyStreamBackend, redis_client: redis.Redis
) -> None:
    backend.store_result("t1", "text: ü", states.SUCCESS, request=Request("c1"))

    assert entries(redis_client) == [Reply("t1", True, "text: ü", "")]


def test_a_stream_that_was_lost_is_made_again_with_its_time_to_live(
    backend: ReplyStreamBackend, redis_client: redis.Redis
) -> None:
    for number in range(3):
        backend.store_result(f"t{number}", "text", states.SUCCESS, request=Request("c1"))
        assert redis_client.xlen(STREAM) == number + 1
        assert keys.REPLY_TTL_S - 60 < int(redis_client.ttl(STREAM)) <= keys.REPLY_TTL_S
    redis_client.delete(STREAM)

    backend.store_result("t3", "text", states.SUCCESS, request=Request("c1"))

    assert entries(redis_client) == [Reply("t3", True, "text", "")]
    assert keys.REPLY_TTL_S - 60 < int(redis_client.ttl(STREAM)) <= keys.REPLY_TTL_S


def test_what_is_told_already_is_not_stored(backend: ReplyStreamBackend, redis_client: redis.Redis) -> None:
    backend.store_result("t1", TOLD, states.SUCCESS, request=Request("c1"))

    assert entries(redis_client) == []


def test_a_failure_carries_celerys_words(backend: ReplyStreamBackend, redis_client: redis.Redis) -> None:
    backend.store_result("t1", ValueError("no such node"), states.FAILURE, request=Request("c1"))

    (reply,) = entries(redis_client)
    assert reply is not None
    assert (reply.task_id, reply.succeeded, reply.result) == ("t1", False, None)
    assert reply.error.startswith("FAILURE")
    assert "no such node" in reply.error


def test_replies_keep_their_order_and_a_repeated_one_is_a_second_entry(
    backend: ReplyStreamBackend, redis_client: redis.Redis
) -> None:
    for number in (1, 2, 2):
        backend.store_result(f"t{number}", {"n": number}, states.SUCCESS, request=Request("c1"))

    assert [reply and reply.task_id for reply in entries(redis_client)] == ["t1", "t2", "t2"]


@pytest.mark.parametrize("state", [states.PENDING, states.STARTED, states.RETRY, states.RECEIVED])
def test_only_terminal_states_are_stored(backend: ReplyStreamBackend, redis_client: redis.Redis, state: str) -> None:
    backend.store_result("t1", None, state, request=Request("c1"))

    assert redis_client.dbsize() == 0


def test_a_task_that_nobody_waits_for_stores_nothing(backend: ReplyStreamBackend, redis_client: redis.Redis) -> None:
    backend.store_result("t1", {"a": 1}, states.SUCCESS, request=Request(None))
    backend.store_result("t1", {"a": 1}, states.SUCCESS)

    assert redis_client.dbsize() == 0


def test_the_stream_is_the_only_key_and_expires(backend: ReplyStreamBackend, redis_client: redis.Redis) -> None:
    backend.store_result("t1", {"a": 1}, states.SUCCESS, request=Request("c1"))

    assert redis_client.keys() == [STREAM.encode()]
    assert 0 < int(redis_client.ttl(STREAM)) <= keys.REPLY_TTL_S


def test_a_cut_connection_loses_no_result(backend: ReplyStreamBackend, redis_client: redis.Redis) -> None:
    backend.store_result("t1", {"a": 1}, states.SUCCESS, request=Request("c1"))
    assert redis_client.client_kill_filter(_type="normal", skipme=True) >= 1

    backend.store_result("t2", {"a": 2}, states.SUCCESS, request=Request("c1"))

    assert [reply and reply.task_id for reply in entries(redis_client)] == ["t1", "t2"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"task_id":"t"}',
        b'{"task_id":"t","status":"SUCCESS"}',
        b"[" * 200_000,
    ],
)
def test_what_is_no_reply_is_none(raw: bytes) -> None:
    assert decode_reply(raw) is None


def test_a_success_whose_result_is_no_object_is_no_success() -> None:
    reply = decode_reply(b'{"task_id":"t","status":"SUCCESS","result":[1]}')

    assert reply == Reply("t", False, None, "SUCCESS: [1]")


def test_long_words_of_a_failure_are_bounded() -> None:
    raw = json.dumps({"task_id": "t", "status": "FAILURE", "result": "x" * 10_000}).encode()

    reply = decode_reply(raw)
    assert reply is not None
    assert len(reply.error) < 600


@given(
    st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_garbage_never_raises(raw: bytes) -> None:
    assert decode_reply(raw) is None


@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers()) | st.none())
def test_anything_with_the_three_fields_is_a_reply(task_id: str, status: str, result: dict[str, int] | None) -> None:
    reply = decode_reply(json.dumps({"task_id": task_id, "status": status, "result": result}).encode())

    assert reply is not None
    assert reply.task_id == task_id
    assert reply.succeeded == (status == "SUCCESS" and result is not None)
