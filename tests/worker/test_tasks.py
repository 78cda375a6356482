"""What orders beside calls come to on a node whose boxes are processes: one that came too late touches nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sandbox.process_engine import ProcessEngine
from tests.worker.projects import order_for, project
from worker.beneath import remove_tree
from worker.boxes import Boxes
from worker.contract import keys
from worker.contract.orders import BoxOrder, CopyOrder, FinishOrder, FinishOutcome, PrepareOrder, PrepareOutcome
from worker.mcp.entry import Mcp
from worker.standing import Owners
from worker.tasks import copied, finished, prepared

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
