"""What orders beside calls come to on a node whose boxes are processes: an earlier owner's touch nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.process_engine import ProcessEngine
from tests.worker.projects import order_for, project
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, FinishOrder, FinishOutcome
from worker.mcp.entry import Mcp
from worker.tasks import finished

Finish = Callable[[BoxOrder], FinishOutcome]


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
def finish(boxes: Boxes, tmp_path: Path) -> Finish:
    mcp = Mcp(boxes, tmp_path / "scratch")
    return lambda box: finished(boxes, mcp, FinishOrder(box=box, node="n", incarnation="n-1"))


def begin_transcript(order: BoxOrder) -> None:
    session_dir = Path(order.session_dir)
    session_dir.mkdir(parents=True, exist_ok=True)
    (session_dir / f"{order.session}.{order.generation}.jsonl").touch()


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
