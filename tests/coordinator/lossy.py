"""A link to Redis that loses one answer: what was asked is done, and the connection is gone before it says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

UNKNOWN_SCRIPT = b"-NOSCRIPT"
"""Nothing was done then: the client sends the script itself."""


class LossyLink:
    """A socket that leads to a Redis. Use `open_link`."""

    def __init__(self, redis_socket: Path) -> None:
        self._redis = redis_socket
        self._serving: list[asyncio.Task[None]] = []
        self._mark = b""
        self._passed = 0
        self.lost = 0
        """Answers that were lost."""

    def lose(self, mark: str, *, after: int = 0) -> None:
        """Lose the answer to the next request that names this, once so many were answered."""
        self._mark, self._passed = mark.encode(), after

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to carry a connection."""
        self._serving.append(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        """Come back when all connections have ended: their clients have gone before."""
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_unix_connection(self._redis)
        asked = [b""]
        both = [
            asyncio.create_task(self._carry(reader, to_redis, asked, is_answer=False)),
            asyncio.create_task(self._carry(from_redis, writer, asked, is_answer=True)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, to_redis):
            one.close()
        # With nothing to read any more both come to their end; a cancel could leave a connection half closed.
        await asyncio.gather(*both, return_exceptions=True)
        for one in (writer, to_redis):
            with contextlib.suppress(OSError):
                await one.wait_closed()

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: list[bytes], *, is_answer: bool
    ) -> None:
        while data := await source.read(65536):
            if not is_answer:
                asked[0] = data
            elif self._mark and self._mark in asked[0] and not data.startswith(UNKNOWN_SCRIPT):
                self._passed -= 1
                if self._passed < 0:
                    self._mark = b""
                    self.lost += 1
                    return
            target.write(data)
            await target.drain()


@contextlib.asynccontextmanager
async def open_link(redis_socket: Path) -> AsyncIterator[tuple[LossyLink, str]]:
    """Yield the link, and the URL of the Redis that it leads to."""
    link, path = LossyLink(redis_socket), redis_socket.with_name("lossy")
    server = await asyncio.start_unix_server(link.serve, path)
    try:
        yield link, f"unix://{path}"
    finally:
        server.close()
        await link.close()
        path.unlink()
