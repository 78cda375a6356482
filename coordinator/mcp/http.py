"""The MCP server over HTTP on this machine: who knows the token is the box's client."""

import contextlib
import hmac
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.errors import ConfigError

HOST = "127.0.0.1"
PATH = "/mcp"
CLOSE_S = 3
"""How long open connections may still take at the end."""


def listen(port: int) -> socket.socket:
    """Return a listening socket on the loopback.

    Args:
        port: 0 for a free one.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as exc:
        raise ConfigError(f"--http {port}: it cannot be listened on: {exc.strerror}. Take another port.") from exc


class HttpServer(uvicorn.Server):
    """Serves one MCP server at `/mcp`; leaves signals to its owner, who sets `should_exit`."""

    def __init__(self, server: "Server[Any]", token: str) -> None:
        app = WithToken(server.streamable_http_app(streamable_http_path=PATH, host=HOST), token)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=CLOSE_S
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class WithToken:
    """Lets only those pass who bring the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                refusal = PlainTextResponse("The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
