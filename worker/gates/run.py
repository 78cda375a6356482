"""The last gate: runs the tool in the session's box, or in a process of its own, and turns every failure into a
result, once.

What a tool hands back is checked, cut loose from it and capped: a tool of a user's may raise anything, return
anything, or never return.
"""

import logging
import time
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import BoxLost
from sandbox.requests import CallMark
from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.limits import lost_to_a_limit
from tools.mcp import McpTool
from tools.sealing import sealed
from worker.boxes import Boxes
from worker.cursors import FileCursors
from worker.errors import BoxUnavailable, NoPlace
from worker.gates.deadline import Overdue, within
from worker.gates.gate import GateCall
from worker.mcp.entry import Mcp
from worker.own_tools import MAY_HAVE_RUN, OwnTools

log = logging.getLogger(__name__)

GRACE_S = 25.0
"""Beyond a call's own limit: above what the box's link takes for it, below what the coordinator waits."""


class RunGate:
    """Runs calls; never raises."""

    def __init__(self, boxes: Boxes, own: OwnTools, mcp: Mcp, *, grace_s: float = GRACE_S) -> None:
        self._boxes = boxes
        self._own = own
        self._mcp = mcp
        self._grace_s = grace_s

    def __call__(self, call: GateCall) -> ToolResult:
        """Return the tool's result, or the error that stands for what happened."""
        started = time.monotonic()
        try:
            result = sealed(self._run(call), call.order.tool)
        except NoPlace as exc:
            # Nothing is wrong with the node: no breaker counts it, and no box was lost.
            result = ToolResult.failure(
                ErrorCode.LIMIT_REACHED,
                f"{call.order.tool} did not run: your sandbox was ended, and {exc}. "
                "Nothing was changed; try again later.",
            )
        except BoxUnavailable as exc:
            result = ToolResult.failure(ErrorCode.BOX_LOST, f"The sandbox could not be started: {exc}")
        except ToolFailure as exc:
            result = _failed(exc, call.order.tool)
        except Overdue as exc:
            log.error("a tool did not return; its thread is left", extra={"call_id": str(call.order.key)})
            result = ToolResult.failure(ErrorCode.TIMEOUT, f"{exc}. {MAY_HAVE_RUN}")
        except Exception:
            # A bug of ours or of a user's tool: the model gets a typed error, the log gets the trace.
            log.exception("a tool raised", extra={"call_id": str(call.order.key), "tool": call.order.tool})
            result = ToolResult.failure(
                ErrorCode.INTERNAL_ERROR, f"{call.order.tool} failed inside Sandhog; the operator's log has the cause."
            )
        return result.timed((time.monotonic() - started) * 1000).with_arguments(call.order.arguments)

    def _run(self, call: GateCall) -> ToolResult:
        order, tool = call.order, call.tool
        if isinstance(tool, McpTool):
            return self._mcp.run(call)
        if tool.runs_on == "worker":
            return self._own.run(call, None)
        box = self._boxes.running_box(order.box.session) if call.joining else self._boxes.box_for(order.box)
        if box is None:
            return ToolResult.failure(
                ErrorCode.OUTCOME_UNKNOWN, "The sandbox this call was sent to is gone; the call may have run."
            )
        if call.is_cancelled() and not call.joining:
            # While its box was being started, nobody in there could be told.
            return ToolResult.failure(ErrorCode.CANCELLED, f"{order.tool} was cancelled before it ran.")
        try:
            if tool.has_own_process:
                return self._own.run(call, box)
            if tool.is_bounded:
                return tool.run(call.arguments, self._context(call, box))
            limit_s = tool.timeout_s(call.arguments) + self._grace_s
            return within(limit_s, lambda: tool.run(call.arguments, self._context(call, box)), order.tool)
        except BoxLost as exc:
            self._boxes.lost(order.box.session, box, exc)
            limit = lost_to_a_limit(exc, lambda: box.info.facts)
            if limit is not None:
                return ToolResult.failure(
                    ErrorCode.LIMIT_REACHED,
                    f"{limit} The call may have run in part. The next call gets a fresh sandbox on the same workspace.",
                )
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
        return RunContext(
            box=box,
            mark=mark,
            principal=call.order.principal,
            attributes=call.order.attributes,
            spill=call.spill,
            seen=call.seen,
            cursors=FileCursors(Path(call.order.box.session_dir), str(key)),
            result_bytes=call.order.result_bytes,
        )


def _failed(failure: ToolFailure, tool: str) -> ToolResult:
    """Return the result that stands for a failure, also for one whose words or code are none."""
    try:
        return sealed(ToolResult.failure(failure.code, failure.message), tool)
    except (ToolFailure, ValueError, TypeError, AttributeError):
        words = f"{tool} failed, and its words cannot be shown. This is a fault of the tool."
        return ToolResult.failure(ErrorCode.INTERNAL_ERROR, words)
