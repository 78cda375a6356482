"""The MCP servers of a node's sessions: order → **clients** → connection → server, and its tools as ours.

The settings of a session's servers lie in its directory. Servers start when the session's box is made ready, or when a
node that was started again gets the first call; they end with the session.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as Overdue
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

from mcp.client._transport import TransportStreams
from mcp.types import CallToolResult, Tool
from pydantic import ValidationError

from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.mcp import McpArguments, McpTool, mcp_tool
from worker.boxes import Boxes
from worker.contract.mcp import MCP_FILE, McpListing, McpServer, McpServers, McpToolSpec
from worker.contract.orders import BoxOrder, CallOrder
from worker.gates.gate import GateCall
from worker.mcp.box_pipe import BoxPipe
from worker.mcp.connection import (
    MOST_TOOLS,
    Connection,
    Opening,
    ServerFailed,
    ServerLost,
    ServerRefused,
    ServerTimeout,
)
from worker.mcp.http import over_http
from worker.mcp.lines import started
from worker.mcp.loop import OwnedLoop
from worker.mcp.naming import tool_names
from worker.mcp.process import ProcessPipe
from worker.mcp.results import tool_result
from worker.own_secrets import redacted_text

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MAY_HAVE_RUN = "It may have run; look before doing it again."
DESCRIPTION_CHARS = 4_000
SCHEMA_BYTES = 32_000
LISTING_BYTES = 400_000
"""Of all tools of a session together."""
MARGIN_S = 10.0
END_S = 15.0


@dataclass
class _Servers:
    """The servers of one session; changed under the lock of its McpClients."""

    connections: dict[str, Connection]
    tools: dict[str, tuple[str, str, McpTool]] = field(default_factory=dict)
    """By the name that models use: server, its own name, and the tool."""
    listing: McpListing = field(default_factory=McpListing)
    listed: tuple[tuple[Tool, ...], ...] = ()
    """What the listing was made of."""


class McpClients:
    """Asks the servers of this node's sessions. Thread-safe; one per process."""

    def __init__(self, boxes: Boxes, scratch: Path, *, deny: Iterable[str] = ()) -> None:
        """`scratch` is where servers on the node have their homes; `deny` are networks that no address may be in."""
        self._boxes = boxes
        self._scratch = scratch
        self._deny = tuple(ip_network(text) for text in deny)
        self._loop = OwnedLoop()
        self._guard = threading.Lock()
        self._sessions: dict[str, _Servers] = {}
        self._running: dict[str, Future[CallToolResult]] = {}

    def listing(self, order: BoxOrder) -> McpListing:
        """Return the tools of a session's servers, started where they do not run; a server that fails is a note."""
        try:
            servers = self._servers(order)
        except ServerFailed as exc:
            return McpListing(notes=(str(exc),))
        connections = list(servers.connections.values())
        started = [self._loop.start(one.list()) for one in connections]
        notes = []
        for connection, future in zip(connections, started, strict=True):
            try:
                future.result(connection.server.start_s + MARGIN_S)
            except (ServerFailed, Overdue, CancelledError, RuntimeError) as exc:
                words = _hidden(str(exc) or "it did not start in time", connection.server)
                notes.append(f"The MCP server {connection.server.name} cannot be used: {words}.")
        return self._relisted(servers, notes)

    def digest(self, order: BoxOrder) -> str:
        """Return what the present tools of a session's servers hash to; "" where they are not known here."""
        with self._guard:
            servers = self._sessions.get(order.session)
        return self._relisted(servers, servers.listing.notes).digest if servers else ""

    def tool(self, order: CallOrder) -> McpTool | None:
        """Return the tool that a call asks for; None if the session's servers have none of that name."""
        with self._guard:
            servers = self._sessions.get(order.box.session)
        if servers is None or order.tool not in servers.tools:
            self.listing(order.box)
            with self._guard:
                servers = self._sessions.get(order.box.session)
        found = servers.tools.get(order.tool) if servers else None
        return found[2] if found else None

    def run(self, call: GateCall) -> ToolResult:
        """Return the call's result.

        Raises:
            ToolFailure: it has none; says why.
        """
        order = call.order
        if call.joining:
            raise ToolFailure(ErrorCode.OUTCOME_UNKNOWN, f"The node was restarted under this call. {MAY_HAVE_RUN}")
        with self._guard:
            servers = self._sessions.get(order.box.session)
            found = servers.tools.get(order.tool) if servers else None
        if servers is None or found is None:
            raise ToolFailure(ErrorCode.UNKNOWN_TOOL, f"No server has a tool {order.tool} now.")
        server, name, _ = found
        connection = servers.connections[server]
        assert isinstance(call.arguments, McpArguments)
        answer = self._ask(str(order.key), connection, name, call.arguments.root)
        result = tool_result(answer)
        return result.with_text(_hidden(result.text, connection.server))

    def cancel(self, call_keys: Iterable[str]) -> None:
        """End the running ones of these calls; their servers are told."""
        with self._guard:
            found = [self._running[key] for key in call_keys if key in self._running]
        for future in found:
            future.cancel()

    def end(self, session: str) -> None:
        """End a session's servers. Idempotent."""
        with self._guard:
            servers = self._sessions.pop(session, None)
        if servers is not None:
            for connection in servers.connections.values():
                self._finish(connection)

    def close(self) -> None:
        """End all servers, and the thread that asks them."""
        with self._guard:
            sessions = list(self._sessions)
        for session in sessions:
            self.end(session)
        self._loop.close()

    def _ask(self, key: str, connection: Connection, name: str, arguments: dict[str, Any]) -> CallToolResult:
        tool, limit_s = f"{connection.server.name}'s {name}", connection.server.timeout_s
        future = self._loop.start(connection.call(name, arguments))
        with self._guard:
            self._running[key] = future
        try:
            return future.result(limit_s + connection.server.start_s + MARGIN_S)
        except ServerRefused as exc:
            code = ErrorCode.INVALID_PARAM if exc.is_mistake else ErrorCode.EXECUTION_ERROR
            raise ToolFailure(code, f"{tool} was refused: {_hidden(str(exc), connection.server)}") from exc
        except ServerFailed as exc:
            words = f"{tool} did not run: the server cannot be reached: {_hidden(str(exc), connection.server)}."
            raise ToolFailure(ErrorCode.EXECUTION_ERROR, words) from exc
        except ServerLost as exc:
            words = f"The server ended while {tool} ran ({_hidden(str(exc), connection.server)}). {MAY_HAVE_RUN}"
            raise ToolFailure(ErrorCode.INTERNAL_ERROR, f"{words} The next call starts it again.") from exc
        except (ServerTimeout, Overdue) as exc:
            future.cancel()
            words = f"{tool} did not answer within {limit_s:g} s and was cancelled. {MAY_HAVE_RUN}"
            raise ToolFailure(ErrorCode.TIMEOUT, words) from exc
        except CancelledError as exc:
            raise ToolFailure(ErrorCode.CANCELLED, f"{tool} was cancelled. {MAY_HAVE_RUN}") from exc
        finally:
            with self._guard:
                del self._running[key]

    def _servers(self, order: BoxOrder) -> _Servers:
        with self._guard:
            known = self._sessions.get(order.session)
            if known is not None:
                return known
            path = Path(order.session_dir) / MCP_FILE
            try:
                settings = McpServers.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as exc:
                raise ServerFailed(f"The session's MCP servers cannot be read from {path}.") from exc
            connections = {
                one.name: Connection(one, self._opening(one, order), time.monotonic) for one in settings.servers
            }
            made = self._sessions[order.session] = _Servers(connections)
            return made

    def _opening(self, server: McpServer, order: BoxOrder) -> Opening:
        def opening(on_end: Callable[[str], None]) -> AbstractAsyncContextManager[TransportStreams]:
            if server.url:
                return over_http(
                    server.url,
                    server.headers,
                    timeout_s=server.timeout_s + MARGIN_S,
                    allow_private=server.allow_private,
                    deny=self._deny,
                )
            if server.where == "box":
                return started(
                    lambda: BoxPipe.start(lambda: self._boxes.box_for(order), server.command, server.args, server.env),
                    on_end,
                )
            return started(lambda: ProcessPipe.start(server.command, server.args, server.env, self._scratch), on_end)

        return opening

    def _relisted(self, servers: _Servers, notes: Iterable[str]) -> McpListing:
        """Make the listing anew where a server's tools are others now."""
        with self._guard:
            listed = tuple(one.tools for one in servers.connections.values())
            if listed != servers.listed or tuple(notes) != servers.listing.notes:
                servers.listed = listed
                servers.listing, servers.tools = _made(servers.connections, notes)
            return servers.listing

    def _finish(self, connection: Connection) -> None:
        try:
            self._loop.start(connection.close()).result(END_S)
        except (Overdue, CancelledError, RuntimeError) as exc:
            log.warning("an MCP server was left", extra={"server": connection.server.name, "error": str(exc)})


def _made(
    connections: dict[str, Connection], notes: Iterable[str]
) -> tuple[McpListing, dict[str, tuple[str, str, McpTool]]]:
    """Return what the servers' tools are called here, bounded."""
    names = tool_names((server, tool.name) for server, one in connections.items() for tool in one.tools[:MOST_TOOLS])
    specs: list[McpToolSpec] = []
    tools: dict[str, tuple[str, str, McpTool]] = {}
    said, size = list(notes), 0
    for (server, name), ours in sorted(names.items()):
        connection = connections[server]
        spec = _spec(ours, connection.server, next(tool for tool in connection.tools if tool.name == name))
        own_bytes = len(spec.model_dump_json())
        size += own_bytes
        if own_bytes > SCHEMA_BYTES + DESCRIPTION_CHARS * 4 or size > LISTING_BYTES:
            said.append(f"The tool {ours} is left out: its schema, or all together, are too large.")
            continue
        specs.append(spec)
        tools[ours] = (
            server,
            name,
            mcp_tool(
                ours,
                spec.description,
                spec.parameters,
                reads=spec.reads,
                is_outside=spec.is_outside,
                timeout_s=spec.timeout_s,
            ),
        )
    text = json.dumps([spec.model_dump(mode="json") for spec in specs], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return McpListing(digest=digest, tools=tuple(specs), notes=tuple(said)), tools


def _spec(ours: str, server: McpServer, tool: Tool) -> McpToolSpec:
    description = (tool.description or tool.title or tool.name).encode(errors="replace").decode()
    hints = tool.annotations
    return McpToolSpec(
        name=ours,
        description=description[:DESCRIPTION_CHARS],
        parameters=tool.input_schema,
        reads=bool(server.trusts_read_only and hints is not None and hints.read_only_hint),
        is_outside=server.is_outside,
        timeout_s=server.timeout_s,
    )


def _hidden(text: str, server: McpServer) -> str:
    return redacted_text(text, {f"of {server.name}": value for value in server.secrets})
