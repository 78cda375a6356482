"""A server that speaks lines of JSON: a pipe to it → **lines** → the SDK's streams."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

LINE_BYTES = 16 * 1024 * 1024
"""The longest message that is taken from a server."""


class LinePipe(Protocol):
    """A started server's input and output."""

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error."""

    async def read(self) -> bytes:
        """Return the next line; empty at the end, or when the line is longer than `LINE_BYTES`."""

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the server does not read. Raises OSError when it has ended."""

    async def close(self) -> None:
        """End the server with all it started. Idempotent."""


@asynccontextmanager
async def over_lines(pipe: LinePipe, on_end: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server at a pipe; the server ends with the block.

    Args:
        pipe: To the server.
        on_end: Called with its last words when it says no more.
    """
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        try:
            async with to_session:
                while line := await pipe.read():
                    if line.strip():
                        await to_session.send(_message(line))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass
        finally:
            on_end(pipe.last_words)

    async def write() -> None:
        try:
            async with from_session:
                async for message in from_session:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await pipe.write(text.encode() + b"\n")
        except OSError:
            # It has ended: nobody must wait for its answers.
            await to_session.aclose()
            on_end(pipe.last_words)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()
        with anyio.CancelScope(shield=True):
            await pipe.close()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as exc:
        return exc


@asynccontextmanager
async def started(
    start: Callable[[], Awaitable[LinePipe]], on_end: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server that is started for it."""
    async with over_lines(await start(), on_end) as streams:
        yield streams
