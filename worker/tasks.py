"""The Celery bodies: thin, and they never raise for what a tool did.

A raise inside a chain would strand the links behind it, so refusals, timeouts and lost boxes are outcomes. The one
exception is `Ignore` for a delivery whose claim was refused: nothing is stored and no successor is sent, because the
delivery that holds the claim does both.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.worker.control import control_command

from sandbox.heart import Standing
from worker.boxes import Boxes
from worker.calls import Calls, ClaimRefused
from worker.canary import CANARY_TASK
from worker.chains import run_chain
from worker.contract.orders import (
    CALL_TASK,
    CANCEL_COMMAND,
    COPY_TASK,
    FINISH_TASK,
    JOIN_TASK,
    PREPARE_TASK,
    CallOrder,
    CopyOrder,
    CopyOutcome,
    FinishOrder,
    FinishOutcome,
    PrepareOrder,
    PrepareOutcome,
)
from worker.errors import BoxUnavailable
from worker.mcp.entry import Mcp
from worker.project_notes import project_notes
from worker.standing import Owners, has_later_owner

log = logging.getLogger(__name__)

LAID_OUT = 1
"""Generation of what lies in a fork's directory before it begins: its transcript, with the other session's lines."""


def register(
    app: Celery,
    calls: Calls,
    boxes: Boxes,
    mcp: Mcp,
    owners: Owners,
    on_canary: Callable[[], None],
    is_ending: Callable[[], bool] = lambda: False,
) -> None:
    """Give the app the bodies of this node's tasks, and remote control the command that ends running calls."""

    def call(task: Task, order: str) -> str:
        return run_chain(app, task.request, order, partial(_run, calls), is_ending)

    def join(order: str) -> str:
        return calls.join(CallOrder.from_text(order)).to_text()

    def prepare(order: str) -> str:
        return prepared(boxes, mcp, owners, PrepareOrder.from_text(order)).to_text()

    def finish(order: str) -> str:
        return finished(boxes, mcp, FinishOrder.from_text(order)).to_text()

    def copy(order: str) -> str:
        return copied(boxes, CopyOrder.from_text(order)).to_text()

    def cancel(state: object, call_keys: list[str]) -> dict[str, str]:
        calls.cancel(call_keys)
        return {"ok": "cancelled"}

    def canary() -> None:
        on_canary()

    app.task(call, name=CALL_TASK, bind=True)
    bodies = {JOIN_TASK: join, PREPARE_TASK: prepare, FINISH_TASK: finish, COPY_TASK: copy}
    for name, body in bodies.items():
        app.task(body, name=name)
    app.task(canary, name=CANARY_TASK, ignore_result=True)
    control_command(name=CANCEL_COMMAND, args=[("call_keys", list)])(cancel)


def _run(calls: Calls, order: str) -> str:
    try:
        return calls.call(CallOrder.from_text(order)).to_text()
    except ClaimRefused as exc:
        log.warning("delivery ignored", extra={"reason": str(exc)})
        raise Ignore from exc


def prepared(boxes: Boxes, mcp: Mcp, owners: Owners, order: PrepareOrder) -> PrepareOutcome:
    """Return once the session's box stands and its MCP servers were asked for their tools, or why it cannot.

    An order may have waited for a node that was away: where the session has moved on or ended meanwhile, nobody would
    use its box here, and two would be on one workspace.
    """
    session, started = order.box.session, time.monotonic()
    if owners.of(session, order.box.generation, Path(order.box.session_dir)) is Standing.LOST:
        words = "the session has another owner or another node by now, or has ended"
        return PrepareOutcome(session=session, error=words, is_passing=True)
    try:
        # Whoever has a box made ready waits for a place in line with others.
        box = boxes.box_for(order.box, place_wait_s=0.0)
    except BoxUnavailable as exc:
        return PrepareOutcome(session=session, error=str(exc), is_passing=exc.is_passing, is_own_fault=exc.is_own_fault)
    notes = project_notes(box, order.box) if order.wants_notes else None
    listing = mcp.listing(order.box)
    ready_ms = (time.monotonic() - started) * 1000
    bounds = boxes.bounds(order.box)
    return PrepareOutcome(
        session=session, image_id=box.image_id, ready_ms=ready_ms, bounds=bounds, notes=notes, mcp=listing
    )


def finished(boxes: Boxes, mcp: Mcp, order: FinishOrder) -> FinishOutcome:
    """Return what became of a session's workspace once its box is ended; nothing is touched that a later owner has.

    An owner that stood still does not know that it lost the session, and an order may have waited for a node that was
    away.
    """
    session = order.box.session
    if has_later_owner(Path(order.box.session_dir), order.box.generation):
        log.warning("a session is not ended for an earlier owner", extra={"session_id": session})
        return FinishOutcome(session=session, error="Another coordinator has the session, its box and its workspace.")
    mcp.end(session)
    return boxes.finish(order)


def copied(boxes: Boxes, order: CopyOrder) -> CopyOutcome:
    """Return once the fork has its copy; one that has begun is not given another, which would not be its work."""
    if has_later_owner(Path(order.target_dir), LAID_OUT):
        return CopyOutcome(session=order.target)
    return boxes.copy(order)
