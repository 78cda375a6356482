"""A way to Redis of which one direction can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path


class OneSided:
    """A way to Redis on which one direction can be cut, and the other one goes on."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_cut = False
        """Whether what Redis answers gets lost."""
        self.is_mute = False
        """Whether what Redis is told gets lost."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the address of Redis by this way."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.hang_up()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close all connections, as is done with such as have lost something."""
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            writer.close()
            return
        # Cancelled at the end; the stream's own callback would take that for an error.
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer))
                group.create_task(self._carry(far_reader, writer, is_answer=True))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        try:
            # Where one side has gone, the other one is told.
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    if not (self.is_cut if is_answer else self.is_mute):
                        writer.write(data)
                        await writer.drain()
        finally:
            writer.close()
