"""Connections to a port of this machine, each carried into a session's box: port → **forwarding** → channel."""

import asyncio
import signal
import sys
from collections.abc import Callable

from coordinator.cluster.channel import Channel, FarPipe
from coordinator.commands.acting import keep_action
from coordinator.commands.reaching import find_box, reach
from coordinator.ending import end
from coordinator.errors import ChannelOver, ConfigError
from coordinator.settings import Settings
from coordinator.visible import visible_line
from worker.contract.channels import CHUNK_BYTES, Connection, Do

HERE = "127.0.0.1"


async def forward(settings: Settings, session: str, there: int, here: int, on_bound: Callable[[int], None]) -> None:
    """Forward connections until cancelled, also by SIGTERM and SIGHUP; `on_bound` is told the port here.

    Raises:
        ConfigError: the port here is taken, or the cluster cannot be asked.
        NoBox: the session has no box.
        ChannelOver: it ended.
        TranscriptError: the audit log takes no line; nothing was done.
    """
    _end_by_signals()
    async with find_box(settings, session) as found:
        detail = f"port {there} at {HERE}:{here}"
        async with reach(settings, found, session, "port", detail) as channel:
            forwarder = Forwarder(channel, there)
            try:
                await forwarder.serve(here, on_bound)
            finally:
                carried = f"{forwarder.count} connections"
                keep_action(settings.state_dir, "port_end", session=session, detail=carried)


def _end_by_signals() -> None:
    """Have this task cancelled by a signal that would end the process without a word in the audit log."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has one ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


class Forwarder:
    """Takes connections here, and has one in the box for each."""

    def __init__(self, channel: Channel, there: int) -> None:
        self.count = 0
        """Connections that were taken."""
        self._channel = channel
        self._there = there
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = ""

    async def serve(self, here: int, on_bound: Callable[[int], None]) -> None:
        """Forward until cancelled.

        Raises:
            ConfigError: the port is taken.
            ChannelOver: the channel ended.
        """
        try:
            server = await asyncio.start_server(self._take, HERE, here, limit=CHUNK_BYTES)
        except OSError as exc:
            raise ConfigError(f"{HERE}:{here} cannot be listened on: {exc.strerror or exc}. Name another one.") from exc
        try:
            on_bound(server.sockets[0].getsockname()[1])
            raise ChannelOver(await self._channel.over())
        finally:
            server.close()
            await end(*self._tasks)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.count += 1
        try:
            await self._carry(reader, writer)
        except (ChannelOver, OSError) as exc:
            self._say(str(exc))
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipe = await self._channel.open(Connection(port=self._there))
        up: asyncio.Task[None] | None = None
        try:
            async for frame, body in pipe.frames():
                match frame.do:
                    case Do.OPENED:
                        up = asyncio.create_task(_send(reader, pipe))
                    case Do.DATA:
                        writer.write(body)
                        await writer.drain()
                    case Do.END:
                        writer.write_eof()
                    case Do.CLOSE if up is None:
                        self._say(frame.words)
                        writer.transport.abort()
        finally:
            if up is not None:
                await end(up)
            await pipe.close()

    def _say(self, words: str) -> None:
        """Say why connections fail, once in a row."""
        if words != self._said:
            self._said = words
            print(f"sandhog: {visible_line(words, 300)}", file=sys.stderr)


async def _send(reader: asyncio.StreamReader, pipe: FarPipe) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            await pipe.write(data)
        await pipe.end()
    except OSError:
        # The client is gone, and wants nothing any more.
        await pipe.close()
