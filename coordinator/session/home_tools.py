"""Tools that run here, in the coordinator: partition → **home_tools** → budget. They never travel by Celery.

A tool whose `runs_on` is coordinator has a function here under its name. The function gets the call with the session's
seat and sink, so that it can keep something in the transcript or run a session of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from coordinator.cluster.seat import Seat
from coordinator.session.call_events import TodosWritten
from coordinator.session.event_fields import TodoItem
from coordinator.session.events import EventSink
from coordinator.session.plan import PlannedCall
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.todo_write import TodoWriteParameters, written

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HomeCall:
    """A call that runs here, allowed already."""

    step: int
    planned: PlannedCall
    seat: Seat
    emit: EventSink
    cancelled: asyncio.Event
    """Ends the session; a call that takes long ends soon after it."""


HomeTool = Callable[[HomeCall], Awaitable[ToolResult]]
"""Returns the call's result; a ToolFailure becomes one."""


async def write_todos(call: HomeCall) -> ToolResult:
    """Keep the model's list in the transcript."""
    parameters = call.planned.parameters
    assert isinstance(parameters, TodoWriteParameters)
    items = tuple(TodoItem(content=todo.content, status=todo.status) for todo in parameters.todos)
    call.emit(TodosWritten(step=call.step, index=call.planned.index, todos=items))
    return written(parameters)


HOME_TOOLS: Mapping[str, HomeTool] = {"TodoWrite": write_todos}
"""By the tool's name."""


async def run_here(call: HomeCall, home_tools: Mapping[str, HomeTool]) -> ToolResult:
    """Return a call's result, whatever its function does."""
    name = call.planned.name
    function = home_tools.get(name)
    if function is None:
        return ToolResult.failure(ErrorCode.INTERNAL_ERROR, f"{name} has nothing here that runs it.")
    try:
        return await function(call)
    except ToolFailure as exc:
        return ToolResult.failure(exc.code, exc.message)
    except Exception:
        # A bug of ours: the model gets a typed error, the log gets the trace.
        log.exception("a coordinator tool raised", extra={"tool": name, "step": call.step})
        return ToolResult.failure(ErrorCode.INTERNAL_ERROR, f"{name} failed inside Sandhog; the log has the cause.")
