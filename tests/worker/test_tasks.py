"""What orders come to on a node whose boxes are processes: one that came too late, or twice, touches nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.exceptions import Ignore

from sandbox.process_engine import ProcessEngine
from tests.orders import call_order
from tests.worker.projects import order_for, project
from tools.base import ToolResult
from tools.loading import load_tools
from worker.app import create_app
from worker.beneath import remove_tree
from worker.boxes import Boxes
from worker.calls import Calls
from worker.contract import keys, scripts
from worker.contract.orders import (
    CALL_TASK,
    BoxOrder,
    CallOutcome,
    CopyOrder,
    Fate,
    FinishOrder,
    FinishOutcome,
    PrepareOrder,
    PrepareOutcome,
)
from worker.gates.gate import GateCall
from worker.mcp.entry import Mcp
from worker.own_secrets import Secrets
from worker.own_tools import OwnTools
from worker.spill import Spills
from worker.standing import Owners
from worker.tasks import copied, finished, prepared, register

Finish = Callable[[BoxOrder], FinishOutcome]
Prepare = Callable[[BoxOrder], PrepareOutcome]


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    boxes = Boxes(ProcessEngine("n", tmp_path / "records", allow_no_isolation=True), 60)
    yield boxes
    boxes.close()


@pytest.fixture
def order(tmp_path: Path) -> BoxOrder:
    """A session's box on a private copy, as its first owner orders it."""
    order = order_for(project(tmp_path / "project"))
    begin_transcript(order)
    return order


@pytest.fixture
def prepare(boxes: Boxes, redis_client: redis.Redis, tmp_path: Path) -> Prepare:
    mcp, owners = Mcp(boxes, tmp_path / "scratch"), Owners(redis_client, "n")
    return lambda box: prepared(boxes, mcp, owners, PrepareOrder(box=box, node="n", incarnation="n-1"))


@pytest.fixture
def finish(boxes: Boxes, tmp_path: Path) -> Finish:
    mcp = Mcp(boxes, tmp_path / "scratch")
    return lambda box: finished(boxes, mcp, FinishOrder(box=box, node="n", incarnation="n-1"))


def begin_transcript(order: BoxOrder) -> None:
    session_dir = Path(order.session_dir)
    session_dir.mkdir(parents=True, exist_ok=True)
    (session_dir / f"{order.session}.{order.generation}.jsonl").touch()


ELSEWHERE = [{"generation": "1", "node": "beside"}, {"generation": "2", "node": "n"}]


@pytest.mark.parametrize("known", [*ELSEWHERE, None], ids=["moved", "taken over", "ended"])
def test_an_order_that_came_late_starts_no_box(
    boxes: Boxes, order: BoxOrder, prepare: Prepare, redis_client: redis.Redis, known: dict[Any, Any] | None
) -> None:
    if known is None:
        (Path(order.session_dir) / "s1.1.jsonl").write_text('{"type":"session_ended"}\n')
    else:
        redis_client.hset(keys.session("s1"), mapping=known)
    outcome = prepare(order)
    assert (outcome.error is None, outcome.is_passing) == (False, True)
    assert boxes.running_box("s1") is None
    assert not (Path(order.session_dir) / "work").exists()


@pytest.mark.parametrize("known", [{"generation": "1", "node": "n"}, {"generation": "1"}, {}])
def test_what_redis_does_not_say_keeps_no_box_from_starting(
    boxes: Boxes, order: BoxOrder, prepare: Prepare, redis_client: redis.Redis, known: dict[Any, Any]
) -> None:
    if known:
        redis_client.hset(keys.session("s1"), mapping=known)
    assert prepare(order).error is None
    assert boxes.running_box("s1") is not None


def test_an_earlier_owner_ends_neither_box_nor_copy_of_the_present_one(
    boxes: Boxes, order: BoxOrder, finish: Finish
) -> None:
    box = boxes.box_for(order)
    later = order.model_copy(update={"generation": 2})
    begin_transcript(later)
    assert boxes.box_for(later) is box
    copy = Path(order.session_dir) / "work"
    (copy / "new").write_text("by the present owner\n")

    assert "Another coordinator has the session" in (finish(order).error or "")

    assert box.is_alive()
    assert (copy / "new").exists()
    assert boxes.box_for(later) is box
    outcome = finish(later)
    assert (outcome.error, outcome.changed) == (None, ["new"])
    assert not box.is_alive()


def test_a_fork_that_has_begun_gets_no_second_copy(boxes: Boxes, order: BoxOrder, tmp_path: Path) -> None:
    boxes.box_for(order)
    fork = order.model_copy(update={"session": "f1", "session_dir": str(tmp_path / "sessions" / "f1")})
    copy = CopyOrder(box=order, node="n", incarnation="n-1", target="f1", target_dir=fork.session_dir)
    begin_transcript(fork)
    assert copied(boxes, copy).error is None
    work = Path(fork.session_dir) / "work"
    assert (work / "run").exists()

    # It has gone on, and ended, before the same order comes once more.
    begin_transcript(fork.model_copy(update={"generation": 2}))
    remove_tree(work)
    assert copied(boxes, copy).error is None

    assert not work.exists()


def test_of_a_delivery_that_is_refused_celery_stores_nothing_and_sends_nothing_on(
    boxes: Boxes, order: BoxOrder, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    """By a normal return it would publish the rest of the chain a second time."""

    def unreachable(call: GateCall) -> ToolResult:
        raise AssertionError("no node has the call's tool")

    redis_client.register_script(scripts.OPEN_SESSION)(keys=[keys.session("s1")], args=[1, 60])
    own = OwnTools(load_tools(), Secrets(None), tmp_path / "scratch")
    mcp = Mcp(boxes, tmp_path / "scratch")
    calls = Calls(
        client=redis_client,
        registry=own.registry,
        boxes=boxes,
        own=own,
        mcp=mcp,
        gates=unreachable,
        spills=Spills(),
        incarnation="n-1",
        on_cut=lambda *_: None,
    )
    text = call_order("Fly", box=order, node="n", incarnation="n-1").to_text()
    with create_app(redis_url) as app:
        register(app, calls, boxes, mcp, Owners(redis_client, "n"), lambda: None)
        first = CallOutcome.from_text(app.tasks[CALL_TASK](order=text))
        with pytest.raises(Ignore):
            app.tasks[CALL_TASK](order=text)

    assert first.fate is Fate.RAN
