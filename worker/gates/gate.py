"""The one shape of all gates, and how they are put in a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pydantic import BaseModel

from tools.base import Tool, ToolResult
from tools.seen import SeenFiles
from worker.contract.orders import CallOrder
from worker.spill import SpillFile


@dataclass(frozen=True)
class GateCall:
    """A claimed call on its way through the gates."""

    order: CallOrder
    tool: Tool[BaseModel]
    arguments: BaseModel
    spill: SpillFile
    joining: bool
    """The call was started earlier: nothing may be started now, only its answer fetched."""
    seen: SeenFiles | None = None
    """What the session has seen of its files; None checks and keeps nothing."""
    is_marked: bool = True
    """A breaker may have a record of the tool. False: none had when the call was claimed, so none need be asked."""
    is_cancelled: Callable[[], bool] = lambda: False
    """Whether somebody has cancelled the call by now."""


Handler = Callable[[GateCall], ToolResult]


class Gate(Protocol):
    """Answers a call itself, or hands it to the following gate and may look at its result."""

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return the call's result."""


def in_row(gates: Sequence[Gate], last: Handler) -> Handler:
    """Return one handler that asks the gates in order and `last` at the end."""
    handler = last
    for gate in reversed(gates):
        handler = partial(gate, following=handler)
    return handler
