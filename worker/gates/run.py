"""The last gate: runs the tool in the session's box and turns every failure into a result, once."""

import logging
import time

from sandbox.box import Box
from sandbox.errors import BoxLost
from sandbox.requests import CallMark
from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from worker.boxes import Boxes
from worker.errors import BoxUnavailable
from worker.gates.gate import GateCall

log = logging.getLogger(__name__)


class RunGate:
    """Runs calls; never raises."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    def __call__(self, call: GateCall) -> ToolResult:
        """Return the tool's result, or the error that stands for what happened."""
        started = time.monotonic()
        try:
            result = _checked(self._run(call))
        except BoxUnavailable as exc:
            result = ToolResult.failure(ErrorCode.BOX_LOST, f"The sandbox could not be started: {exc}")
        except ToolFailure as exc:
            result = ToolResult.failure(exc.code, exc.message)
        except Exception:
            # A bug of ours or of a user's tool: the model gets a typed error, the log gets the trace.
            log.exception("a tool raised", extra={"call_id": str(call.order.key), "tool": call.order.tool})
            result = ToolResult.failure(
                ErrorCode.INTERNAL_ERROR, f"{call.order.tool} failed inside Sandhog; the operator's log has the cause."
            )
        return result.timed((time.monotonic() - started) * 1000).with_arguments(call.order.arguments)

    def _run(self, call: GateCall) -> ToolResult:
        order = call.order
        box = self._boxes.running_box(order.key.session) if call.joining else self._boxes.box_for(order.box)
        if box is None:
            return ToolResult.failure(
                ErrorCode.OUTCOME_UNKNOWN, "The sandbox this call was sent to is gone; the call may have run."
            )
        try:
            return call.tool.run(call.arguments, self._context(call, box))
        except BoxLost as exc:
            self._boxes.lost(order.key.session, box, exc)
            return ToolResult.failure(
                ErrorCode.BOX_LOST,
                f"The sandbox was lost while this call ran ({exc}). The call may have run in part. "
                "The next call gets a fresh sandbox on the same workspace.",
            )

    def _context(self, call: GateCall, box: Box) -> RunContext:
        key = call.order.key
        mark = CallMark(
            key=str(key),
            digest=call.order.digest,
            session=key.session,
            generation=key.generation,
            step=key.step,
            join=call.joining,
        )
        return RunContext(box=box, mark=mark, principal=call.order.principal, spill=call.spill, seen=call.seen)


def _checked(result: object) -> ToolResult:
    """Return what a tool returned.

    Raises:
        TypeError: it is no ToolResult: a user's tool may return anything.
    """
    if not isinstance(result, ToolResult):
        raise TypeError(f"a tool returned {type(result).__name__}, not a ToolResult")
    return result
