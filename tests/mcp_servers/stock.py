"""An MCP server made with the official SDK, as somebody else would write one. Run as a program of its own.

`stock.py` serves over stdio, `stock.py PORT TOKEN` over streamable HTTP to who brings the token.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("stock")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count(shelf: str, least: int = 0) -> str:
    """Count what lies on a shelf."""
    return f"{shelf}: {len(shelf) + least} pieces"


@server.tool()
def where() -> dict[str, Any]:
    """Tell who runs this, and where."""
    return {
        "uid": os.getuid(),
        "cwd": str(Path.cwd()),
        "env": sorted(os.environ),
        "secret": os.environ.get("STOCK_KEY", ""),
        "is_box": Path("/opt/sandhog").exists(),
    }


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Draw a shelf."""
    return ["a shelf:", Image(data=b"\x89PNG" + b"\0" * 996, format="png")]


@server.tool()
def large(size: int) -> str:
    """Print a long list."""
    return "x" * size


@server.tool()
def fail() -> str:
    """Fail as a tool does."""
    raise ToolError("the shelf is locked")


@server.tool()
async def wait(seconds: float, mark: str = "") -> str:
    """Take long."""
    note(mark, "begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(mark, "cancelled")
        raise
    return "waited"


def note(mark: str, what: str) -> None:
    if mark:
        Path(mark).write_text(what)


@server.tool()
def die() -> str:
    """End the server at once."""
    os._exit(3)


@server.tool()
async def grow(ctx: Context[Any, Any]) -> str:
    """Get one more tool."""

    def extra() -> str:
        """Was not there before."""
        return "extra"

    server.add_tool(extra, name="an extra.tool")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


class WithToken:
    """Lets only those pass who bring the token."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"x-key") != self.token.encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you?"})
            return
        await self.app(scope, receive, send)


def main() -> None:
    if len(sys.argv) == 1:
        server.run()
        return
    # Only here: the transport over stdio needs no web server.
    import uvicorn

    port, token = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(WithToken(server.streamable_http_app(), token), host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
