"""Lines that somebody types, or a pipe brings: one reader for all who ask at a terminal."""

import asyncio
import contextlib
import os
import termios
import threading
from typing import Any, TextIO

PASTED_WITHIN_S = 0.05
"""What comes so soon behind a line was pasted with it."""


class TypedLines:
    """Reads a stream line by line, for one who asks at a time.

    Args:
        stream: Where the lines come from; only its descriptor is read.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._typed = b""
        """What was typed behind the last line."""
        self._reading: asyncio.Future[bytes] | None = None
        """The one read that may be under way, also across questions."""

    @property
    def is_terminal(self) -> bool:
        """Whether somebody sits there."""
        return self._stream.isatty()

    def forget(self) -> None:
        """Drop what was typed on a terminal before now: it cannot be the answer to what is asked next."""
        if not self._stream.isatty():
            return
        self._typed = b""
        with contextlib.suppress(OSError, termios.error):
            termios.tcflush(self._stream.fileno(), termios.TCIFLUSH)
        if self._reading is not None and self._reading.done():
            self._reading = None

    async def line(self, stop: asyncio.Event, within_s: float | None = None) -> str | None:
        """Return the next line without its end; None at the input's end, once stopped, or when none came in time.

        Raises:
            OSError: the input cannot be read.
        """
        while b"\n" not in self._typed:
            chunk = await self._chunk(stop, within_s)
            if not chunk and (chunk is None or not self._typed):
                return None
            self._typed += chunk or b"\n"
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace")

    async def _chunk(self, stop: asyncio.Event, within_s: float | None) -> bytes | None:
        """Return what is typed next; empty at the input's end, None when nothing is waited for any more."""
        # A read that an earlier question began goes on: two of them would take each other's lines.
        reading = self._reading = self._reading or self._read()
        stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({reading, stopped}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if not reading.done():
            return None
        self._reading = None
        return reading.result()

    def _read(self) -> "asyncio.Future[bytes]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        number = self._stream.fileno()

        def hand_over(chunk: bytes, error: OSError | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(chunk)

        def read() -> None:
            chunk, error = b"", None
            try:
                chunk = os.read(number, 4096)
            except OSError as exc:
                error = exc
            # The session may be over, and its event loop closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(hand_over, chunk, error)

        # A daemon thread: a read that nobody answers must not keep the process from ending. On the descriptor, not on
        # the stream: its lock, held by a thread that reads, is fatal to the interpreter when it ends.
        threading.Thread(target=read, name="typed", daemon=True).start()
        return future
