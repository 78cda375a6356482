"""The guest's end of the link: frames over two descriptors, never blocking."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.wire import Decoder, Frame, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

READ_BYTES = 64 * 1024
FULL_BYTES = 1024 * 1024
"""Above this much unsent output the reading of commands' pipes pauses."""


class Channel:
    """One link. Closed for good when the host is gone or sends garbage."""

    def __init__(
        self,
        loop: Loop,
        fds: tuple[int, ...],
        on_frame: Callable[[Frame], None],
        on_room: Callable[[], None],
        on_close: Callable[[Channel], None],
    ) -> None:
        """`fds`: to read and to write, each one's own even where both lead to one socket; a third ends the link."""
        self._loop = loop
        self._fds = fds
        self._in, self._out = fds[:2]
        self._on_frame = on_frame
        self._on_room = on_room
        self._on_close = on_close
        self._decoder = Decoder()
        self._unsent = bytearray()
        self.is_open = True
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        loop.watch(self._in, self._readable)
        for fd in fds[2:]:
            loop.watch(fd, lambda _: self.close())

    @property
    def is_full(self) -> bool:
        """True when the host takes output more slowly than it comes."""
        return len(self._unsent) > FULL_BYTES

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame now or as soon as the host takes it."""
        if not self.is_open:
            return
        data = encode(head, body)
        if self._unsent:
            self._unsent += data
            return
        sent = self._write(data)
        if self.is_open and sent < len(data):
            self._unsent += data[sent:]
            self._loop.watch(self._out, self._writable, select.EPOLLOUT)

    def close(self) -> None:
        """Let go of the descriptors; the relay ends by it."""
        if not self.is_open:
            return
        self.is_open = False
        for fd in self._fds:
            self._loop.unwatch(fd)
            os.close(fd)
        self._unsent.clear()
        self._on_close(self)

    def _readable(self, _: int) -> None:
        try:
            data = os.read(self._in, READ_BYTES)
            frames = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self.close()
            return
        if not data:
            self.close()
            return
        for frame in frames:
            if self.is_open:
                self._on_frame(frame)

    def _writable(self, _: int) -> None:
        sent = self._write(self._unsent)
        if not self.is_open:
            return
        was_full = self.is_full
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.unwatch(self._out)
        if was_full and not self.is_full:
            self._on_room()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._out, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0
