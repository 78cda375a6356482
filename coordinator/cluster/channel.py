"""The terminal's end of a channel into a session's box: command → **channel** → Redis → node.

One channel for each command at a terminal, with as many pipes as it wants. Each pipe has a window from end to end: what
the box does not take is not sent, and what is not taken here the box does not send.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.ending import end
from coordinator.errors import ChannelOver
from worker.contract import keys
from worker.contract.channels import (
    BEAT_S,
    CHUNK_BYTES,
    SILENT_S,
    WINDOW,
    BadFrame,
    ChannelFrame,
    ChannelOrder,
    Do,
    Size,
    Wanted,
    frame_cost,
    read_frame,
)

log = logging.getLogger(__name__)

BLOCK_MS = 1_000
ENTRIES = 64
_Answer = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]


class FarPipe:
    """One pipe into the box. For the loop's thread only."""

    def __init__(self, channel: "Channel", number: int) -> None:
        self._channel = channel
        self._number = number
        self._credit = WINDOW
        self._room = asyncio.Event()
        self._room.set()
        self._came: asyncio.Queue[tuple[ChannelFrame, bytes]] = asyncio.Queue()
        """Bounded by the window."""
        self._owed = 0
        self._last: ChannelFrame | None = None
        self._saying = asyncio.Lock()

    async def frames(self) -> AsyncIterator[tuple[ChannelFrame, bytes]]:
        """Yield what comes: data, errors, an end; the last one closes the pipe. Asking for the next one takes a frame.

        Raises:
            ChannelOver: the channel ended before the pipe.
        """
        while True:
            frame, body = await self._came.get()
            if frame.do is Do.OVER:
                raise ChannelOver(frame.words)
            yield frame, body
            if frame.do is Do.CLOSE:
                return
            if body:
                await self._took(len(body))

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the box takes none. What is sent to a pipe that has ended is dropped.

        Raises:
            ChannelOver: Redis does not answer.
        """
        left = memoryview(data)
        while left and self._last is None:
            if self._credit <= frame_cost(0):
                self._room.clear()
                await self._room.wait()
                continue
            size = min(len(left), CHUNK_BYTES, self._credit - frame_cost(0))
            self._credit -= frame_cost(size)
            await self._say(ChannelFrame(do=Do.DATA, pipe=self._number), bytes(left[:size]))
            left = left[size:]

    async def resize(self, size: Size) -> None:
        """Tell the command's terminal how large it is."""
        await self._say(ChannelFrame(do=Do.RESIZE, pipe=self._number, size=size))

    async def end(self) -> None:
        """Say that nothing more comes."""
        await self._say(ChannelFrame(do=Do.END, pipe=self._number))

    async def close(self) -> None:
        """End what is at the other end."""
        if self._last is None:
            await self._channel.say(ChannelFrame(do=Do.CLOSE, pipe=self._number))

    def take(self, frame: ChannelFrame, body: bytes) -> None:
        """Take a frame of the channel."""
        if frame.do is Do.CREDIT:
            self._credit += frame.n
        elif frame.do in (Do.CLOSE, Do.OVER):
            self._last = frame
        self._room.set()
        if frame.do is not Do.CREDIT:
            self._came.put_nowait((frame, body))

    async def _say(self, frame: ChannelFrame, body: bytes = b"") -> None:
        """Write a frame behind those before it: each may take a connection of its own, which may have to be made."""
        async with self._saying:
            await self._channel.say(frame, body)

    async def _took(self, size_bytes: int) -> None:
        self._owed += frame_cost(size_bytes)
        if self._owed >= WINDOW // 4 and self._last is None:
            owed, self._owed = self._owed, 0
            await self._channel.say(ChannelFrame(do=Do.CREDIT, pipe=self._number, n=owed))


class Channel:
    """A channel that a node serves; `open_channel` makes it."""

    def __init__(self, client: Redis, name: str) -> None:
        self._redis = client
        self._up, self._down = keys.channel_up(name), keys.channel_down(name)
        self._pipes: dict[int, FarPipe] = {}
        self._last_number = 0
        self._opening = asyncio.Lock()
        self._last_id = b"0"
        self._over = ""
        self._ended = asyncio.Event()

    async def open(self, wanted: Wanted) -> FarPipe:
        """Return a new pipe; that it cannot be had is told by its end.

        Raises:
            ChannelOver: the channel has ended.
        """
        # The node wants them in the order of their numbers, and each frame may take a connection of its own.
        async with self._opening:
            self._last_number = number = self._last_number + 1
            pipe = self._pipes[number] = FarPipe(self, number)
            await self.say(ChannelFrame(do=Do.OPEN, pipe=number, wanted=wanted))
        return pipe

    async def say(self, frame: ChannelFrame, body: bytes = b"") -> None:
        """Write a frame for the node.

        Raises:
            ChannelOver: the channel has ended, or Redis does not answer.
        """
        if self._over:
            raise ChannelOver(self._over)
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.xadd(self._up, frame.fields(body))  # type: ignore[arg-type]
                pipe.expire(self._up, keys.CHANNEL_TTL_S)
                await pipe.execute()
        except (RedisError, OSError) as exc:
            # It may be there or not: nothing may follow.
            self._end(f"Redis does not answer: {exc}")
            raise ChannelOver(self._over) from exc

    async def beat(self) -> None:
        """Say that the terminal is there, until the channel has ended."""
        while not self._over:
            await asyncio.sleep(BEAT_S)
            try:
                await self.say(ChannelFrame(do=Do.BEAT))
            except ChannelOver:
                return

    async def listen(self) -> None:
        """Give what the node says to the pipes, until the channel has ended."""
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while not self._over:
            try:
                found = await self._redis.xread({self._down: self._last_id}, count=ENTRIES, block=BLOCK_MS)
                entries = cast(_Answer, found)[0][1] if found else []
                for _, fields in entries:
                    self._take(*read_frame(fields))
                if entries:
                    self._last_id, heard_at = entries[-1][0], loop.time()
                    await self._redis.xtrim(self._down, minid=self._last_id.decode(), approximate=False)
            except (RedisError, OSError) as exc:
                self._end(f"Redis does not answer: {exc}")
            except BadFrame as exc:
                self._end(f"the node said {exc}")
            if loop.time() - heard_at > SILENT_S:
                self._end("the node does not answer")

    async def over(self) -> str:
        """Return why the channel has ended, once it has."""
        await self._ended.wait()
        return self._over

    async def leave(self) -> None:
        """End the channel, and tell the node."""
        try:
            await self.say(ChannelFrame(do=Do.OVER))
        except ChannelOver:
            return
        self._end("the terminal left")

    def _take(self, frame: ChannelFrame, body: bytes) -> None:
        if frame.do is Do.OVER:
            self._end(frame.words or "the node ended it")
            return
        pipe = self._pipes.get(frame.pipe)
        if pipe is None or frame.do is Do.BEAT:
            return
        pipe.take(frame, body)
        if frame.do is Do.CLOSE:
            del self._pipes[frame.pipe]

    def _end(self, words: str) -> None:
        self._over = self._over or words
        self._ended.set()
        for pipe in self._pipes.values():
            pipe.take(ChannelFrame(do=Do.OVER, words=self._over), b"")
        self._pipes.clear()


@asynccontextmanager
async def open_channel(client: Redis, node: str, session: str, *, purpose: str, actor: str) -> AsyncIterator[Channel]:
    """Yield a channel to a session's box on a node; it ends with the block.

    Raises:
        ChannelOver: Redis does not answer.
    """
    name = secrets.token_hex(16)
    channel = Channel(client, name)
    order = ChannelOrder(channel=name, session=session, purpose=purpose, actor=actor)
    # What was said before stands there when the node comes for it.
    await channel.say(ChannelFrame(do=Do.BEAT))
    await _ask(client, node, order)
    tasks = [asyncio.create_task(channel.listen()), asyncio.create_task(channel.beat())]
    try:
        yield channel
    finally:
        await channel.leave()
        for task in tasks:
            await end(task)
        await _forget(client, name)


async def _ask(client: Redis, node: str, order: ChannelOrder) -> None:
    orders: Any = keys.channel_orders(node)
    try:
        async with client.pipeline(transaction=False) as pipe:
            pipe.rpush(orders, order.model_dump_json())
            pipe.expire(orders, keys.CHANNEL_TTL_S)
            await pipe.execute()
    except (RedisError, OSError) as exc:
        raise ChannelOver(f"Redis does not answer: {exc}") from exc


async def _forget(client: Redis, name: str) -> None:
    """Remove what nobody reads any more. The other stream has the farewell in it, and expires."""
    try:
        await client.delete(keys.channel_down(name))
    except (RedisError, OSError) as exc:
        log.debug("a channel is left to expire", extra={"error": str(exc)})
