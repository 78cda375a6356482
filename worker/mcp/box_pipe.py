"""A server in the session's box: its lines go over the box's link."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from sandbox.box import Box
from sandbox.errors import BoxLost, GuestRefused
from sandbox.pipes import Listener, Pipe, PipeBroken, PipeEnd
from sandbox.wire import stream_cost
from worker.errors import BoxUnavailable
from worker.mcp.lines import LINE_BYTES

WRITE_S = 30.0
GRACE_S = 2.0
"""How long a server may take to end once its input is closed."""


class BoxPipe:
    """One server's pipe. For the loop's thread only, but for what the link's reader hands over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe: Pipe | None = None
        self._lines = bytearray()
        self._searched = 0
        self._owed = 0
        """Cost of what came and for which no room was made."""
        self._giving: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._end: PipeEnd | None = None
        self._ended = asyncio.Event()

    @classmethod
    async def start(
        cls, box_of: Callable[[], Box], command: str, args: tuple[str, ...], env: Mapping[str, str]
    ) -> "BoxPipe":
        """Start a server in the box.

        Raises:
            OSError: it cannot be.
        """
        made = cls()

        def open_pipe() -> Pipe:
            return box_of().open_pipe((command, *args), env, Listener(made._hand_over, made._hand_end))

        try:
            made._pipe = await asyncio.to_thread(open_pipe)
        except (BoxUnavailable, BoxLost, GuestRefused, PipeBroken) as exc:
            raise OSError(f"it cannot be started in the sandbox: {exc}") from exc
        made._make_room()
        return made

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error, and how it ended."""
        return "" if self._end is None else f"{self._end.said.rstrip()} ({self._end.words})".strip()

    async def read(self) -> bytes:
        """Return the next line; empty at the end."""
        while True:
            end = self._lines.find(b"\n", self._searched) + 1
            if end:
                line = bytes(self._lines[:end])
                del self._lines[:end]
                self._searched = 0
                self._make_room()
                return line
            self._searched = len(self._lines)
            if self._end is not None or self._searched > LINE_BYTES:
                return b""
            self._heard.clear()
            await self._heard.wait()

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._pipe is not None
        try:
            await asyncio.to_thread(self._pipe.write, data, WRITE_S)
        except PipeBroken as exc:
            raise OSError(str(exc)) from exc

    async def close(self) -> None:
        """End the server with all it started."""
        if self._pipe is None or self._end is not None:
            return
        with contextlib.suppress(PipeBroken):
            await asyncio.to_thread(self._pipe.end)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._ended.wait()
                return
            await asyncio.to_thread(self._pipe.close)

    def _hand_over(self, data: bytes) -> None:
        self._call(lambda: self._add(data))

    def _hand_end(self, end: PipeEnd) -> None:
        self._call(lambda: self._over(end))

    def _call(self, what: Callable[[], None]) -> None:
        # The loop may be closed by the time that the box ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)

    def _add(self, data: bytes) -> None:
        self._lines += data
        self._owed += stream_cost(len(data))
        self._make_room()
        self._heard.set()

    def _make_room(self) -> None:
        """Let the server say more, unless what waits here is as much as one line may be."""
        if self._owed and self._pipe is not None and len(self._lines) <= LINE_BYTES:
            owed, self._owed = self._owed, 0
            self._giving = asyncio.create_task(self._give(self._pipe, owed))

    async def _give(self, pipe: Pipe, owed: int) -> None:
        with contextlib.suppress(PipeBroken):
            await asyncio.to_thread(pipe.took, owed)

    def _over(self, end: PipeEnd) -> None:
        self._end = end
        self._heard.set()
        self._ended.set()
