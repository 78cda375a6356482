"""The links of a chain, run by the node that holds them, with a real Redis behind the app."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore

from worker.app import create_app
from worker.chains import run_chain
from worker.contract import keys
from worker.contract.orders import CALL_TASK
from worker.contract.replies import REPLY_FIELD, TOLD, Reply, decode_reply

Answers = Callable[[], list[tuple[str, str | None]]]


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = create_app(redis_url)
    app.task(body, name=CALL_TASK, shared=False)
    yield app
    app.backend.client.close()
    app.close()


@pytest.fixture
def message(app: Celery) -> Callable[..., Context]:
    """Make a message as a worker gets it: its own order is `t1`'s, behind it come the links of these tasks."""

    def make(*links: str) -> Context:
        chain = [
            app.signature(CALL_TASK, kwargs={"order": f"order {name}"}, immutable=True).set(
                task_id=name, reply_to="c1", queue=keys.queue("a")
            )
            for name in reversed(links)
        ]
        return Context(id="t1", reply_to="c1", chain=json.loads(json.dumps(chain)))

    return make


@pytest.fixture
def answers(redis_client: redis.Redis) -> Answers:
    """Return task and result of each reply so far."""

    def read() -> list[tuple[str, str | None]]:
        rows: Any = redis_client.xrange(keys.reply_stream("c1"))
        replies = [decode_reply(fields[REPLY_FIELD.encode()]) for _, fields in rows]
        return [(reply.task_id, reply.result) for reply in replies if isinstance(reply, Reply)]

    return read


def body(order: str) -> str:
    return order


def never() -> bool:
    return False


def test_a_call_by_itself_is_left_to_celery(app: Celery, message: Callable[..., Context], answers: Answers) -> None:
    assert run_chain(app, message(), "order t1", str.upper, never) == "ORDER T1"
    assert answers() == []


def test_each_link_runs_once_the_one_before_is_answered(
    app: Celery, message: Callable[..., Context], answers: Answers, redis_client: redis.Redis
) -> None:
    seen: list[tuple[str, int]] = []

    def run(order: str) -> str:
        seen.append((order, len(answers())))
        return order.upper()

    request = message("t2", "t3")
    assert run_chain(app, request, "order t1", run, never) == TOLD

    assert not request.chain, "Celery would publish it"
    assert seen == [("order t1", 0), ("order t2", 1), ("order t3", 2)]
    assert answers() == [("t1", "ORDER T1"), ("t2", "ORDER T2"), ("t3", "ORDER T3")]
    assert redis_client.llen(keys.queue("a")) == 0


def test_a_node_that_is_ending_leaves_all_behind_the_first_to_celery(
    app: Celery, message: Callable[..., Context], answers: Answers
) -> None:
    request = message("t2", "t3")

    assert run_chain(app, request, "order t1", str.upper, lambda: True) == "ORDER T1"
    assert answers() == []
    assert [link["options"]["task_id"] for link in request.chain] == ["t3", "t2"]


def test_a_node_that_ends_on_the_way_leaves_the_rest_to_celery(
    app: Celery, message: Callable[..., Context], answers: Answers
) -> None:
    request = message("t2", "t3", "t4")

    assert run_chain(app, request, "order t1", str.upper, lambda: len(answers()) == 1) == TOLD
    assert answers() == [("t1", "ORDER T1"), ("t2", "ORDER T2")]
    assert [link["options"]["task_id"] for link in request.chain] == ["t4", "t3"]


def test_behind_a_refused_claim_nothing_runs(
    app: Celery, message: Callable[..., Context], answers: Answers, redis_client: redis.Redis
) -> None:
    def run(order: str) -> str:
        if order == "order t2":
            raise Ignore
        return order

    with pytest.raises(Ignore):
        run_chain(app, message("t2", "t3"), "order t1", run, never)

    assert answers() == [("t1", "order t1")]
    assert redis_client.llen(keys.queue("a")) == 0


def test_a_link_that_breaks_is_told_under_its_own_name(
    app: Celery, message: Callable[..., Context], answers: Answers
) -> None:
    def run(order: str) -> str:
        if order == "order t2":
            raise RuntimeError("broken")
        return order

    with pytest.raises(Ignore):
        run_chain(app, message("t2", "t3"), "order t1", run, never)

    assert answers() == [("t1", "order t1"), ("t2", None)]
