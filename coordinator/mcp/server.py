"""The box's tools as an MCP server: a client over stdio or HTTP → **server** → requests."""

import asyncio
import importlib.metadata
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from coordinator.ending import end
from coordinator.mcp.requests import OtherRequest, Requests
from coordinator.mcp.served_box import Answer, ServedBox
from tools.base import AnyTool
from tools.schema import parameters_schema

PROGRESS_S = 2.0
"""How often a client that wants progress hears that its call still runs."""
REQUEST_KEY = "sandhog/request-key"
"""In a request's `_meta`: names it for a client that repeats it over another connection."""
SESSION_HEADER = "mcp-session-id"

INSTRUCTIONS = (
    "These tools work in one sealed Linux sandbox, not on your machine. Paths are those inside it; the user's files "
    "lie below /workspace. Bash keeps its working directory between calls. Read a file before you edit or overwrite "
    "it. A long result shows its head and tail and names a file below /spill that holds all of it; Read and Grep work "
    "there."
)


def make_server(box: ServedBox) -> "Server[Any]":
    """Return the server of one box's tools; every client of it works in that box."""
    requests = Requests(box)
    listed = [_described(tool) for tool in box.registry.tools()]

    async def list_tools(ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        telling = asyncio.create_task(_tell_progress(ctx))
        try:
            return _result(await requests.answer(_key(ctx), params.name, params.arguments or {}))
        except OtherRequest as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from exc
        finally:
            # The request may be cancelled by now: what ends with it must end all the same.
            with anyio.CancelScope(shield=True):
                await end(telling)

    return Server(
        "sandhog",
        version=importlib.metadata.version("sandhog"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(server: "Server[Any]") -> None:
    """Serve the client at this process's standard input and output until it closes its end."""
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _described(tool: AnyTool) -> Tool:
    reads = tool.effect == "reads"
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=parameters_schema(tool.parameters),
        annotations=ToolAnnotations(read_only_hint=reads, destructive_hint=not reads, open_world_hint=False),
    )


def _key(ctx: ServerRequestContext[Any]) -> str | None:
    """Return what names a request, None for one of a connection that nothing tells from others."""
    named = (ctx.meta or {}).get(REQUEST_KEY)
    if isinstance(named, str) and named:
        return f"key:{named[:200]}"
    if ctx.request_id is None:
        return None
    if ctx.request is None:
        return f"stdio:{ctx.request_id!r}"
    session = ctx.request.headers.get(SESSION_HEADER)
    return f"http:{session}:{ctx.request_id!r}" if session else None


async def _tell_progress(ctx: ServerRequestContext[Any]) -> None:
    waited_s = 0.0
    while True:
        await asyncio.sleep(PROGRESS_S)
        waited_s += PROGRESS_S
        await ctx.session.report_progress(waited_s, None, f"running for {waited_s:.0f} s")


def _result(answer: Answer) -> CallToolResult:
    text = answer.text
    if answer.error_code is not None:
        text = f"{answer.error_code}: {answer.error_message}" + (f"\n{text}" if text else "")
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        is_error=answer.status == "error",
        _meta={"sandhog": {"status": answer.status, "code": answer.error_code, "data": answer.data}},
    )
