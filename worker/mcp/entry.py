"""The way to a node's MCP clients. Nothing of the SDK is imported before a session has servers: nodes start fast.

task, call, gate → **entry** → clients
"""

import importlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.mcp import McpTool
from worker.boxes import Boxes
from worker.contract.mcp import McpListing
from worker.contract.orders import BoxOrder, CallOrder
from worker.gates.gate import GateCall

if TYPE_CHECKING:
    from worker.mcp.clients import McpClients


class Mcp:
    """The MCP servers of this node's sessions. Thread-safe; one per process."""

    def __init__(self, boxes: Boxes, scratch: Path, *, deny: Iterable[str] = ()) -> None:
        """`scratch` is where servers on the node have their homes; `deny` are networks that no address may be in."""
        self._boxes = boxes
        self._scratch = scratch
        self._deny = tuple(deny)
        self._guard = threading.Lock()
        self._clients: McpClients | None = None
        self._is_closed = False

    def listing(self, order: BoxOrder) -> McpListing | None:
        """Return the tools of a session's servers, started where they do not run; None for a session without any."""
        return self._made().listing(order) if order.extras.mcp else None

    def digest(self, order: BoxOrder) -> str:
        """Return what the present tools of a session's servers hash to; "" where there are none."""
        return self._clients.digest(order) if self._clients is not None and order.extras.mcp else ""

    def tool(self, order: CallOrder) -> McpTool | None:
        """Return the tool that a call asks for; None if the session's servers have none of that name."""
        return self._made().tool(order) if order.box.extras.mcp else None

    def run(self, call: GateCall) -> ToolResult:
        """Return the call's result.

        Raises:
            ToolFailure: it has none; says why.
        """
        return self._made().run(call)

    def cancel(self, call_keys: Iterable[str]) -> None:
        """End the running ones of these calls; their servers are told."""
        if self._clients is not None:
            self._clients.cancel(call_keys)

    def end(self, session: str) -> None:
        """End a session's servers. Idempotent."""
        if self._clients is not None:
            self._clients.end(session)

    def close(self) -> None:
        """End all servers."""
        with self._guard:
            self._is_closed = True
        if self._clients is not None:
            self._clients.close()

    def _made(self) -> "McpClients":
        with self._guard:
            if self._is_closed:
                raise ToolFailure(ErrorCode.EXECUTION_ERROR, "The node is ending.")
            if self._clients is None:
                kind: type[McpClients] = importlib.import_module("worker.mcp.clients").McpClients
                self._clients = kind(self._boxes, self._scratch, deny=self._deny)
            return self._clients
