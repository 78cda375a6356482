"""One socket whose bytes are frames on the link, under a window both ways: egress, connections → **stream**."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.wire import STREAM_CHUNK_BYTES, STREAM_FRAME_COST, STREAM_WINDOW, Frame, StreamOp, stream_cost

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any


class Stream:
    """State of one connection; it owns the socket until it is dropped."""

    __slots__ = (
        "_client", "_credit", "_events", "_host_ended", "_is_dropped", "_loop", "_on_drop", "_outgoing", "_owed",
        "_tell", "_we_ended",
    )  # fmt: skip

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        tell: Callable[[dict[str, Any], bytes], bool],
        on_drop: Callable[[], None],
    ) -> None:
        """`tell` sends a frame of this stream; `on_drop` is called once, when the socket is closed."""
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = loop
        self._client = client
        self._tell = tell
        self._on_drop = on_drop
        self._credit = STREAM_WINDOW
        """What may be sent to the host."""
        self._outgoing = bytearray()
        """What the client has not taken yet."""
        self._owed = 0
        """Cost of the frames received for which no credit was given back."""
        self._events = 0
        self._we_ended = False
        self._host_ended = False
        self._is_dropped = False

    def begin(self) -> None:
        """Carry bytes from now on."""
        self._update()

    def take(self, frame: Frame) -> None:
        """Take what the host says of the stream; what only other kinds of streams know is ignored."""
        match frame.head["do"]:
            case StreamOp.DATA:
                self._owed += stream_cost(len(frame.body))
                self._outgoing += frame.body
                self._write()
            case StreamOp.CREDIT:
                self._credit += frame.head["n"]
                self._update()
            case StreamOp.END:
                self._host_ended = True
                self._write()
            case StreamOp.CLOSE:
                self.drop()

    def drop(self) -> None:
        """Close the socket without a word to the host."""
        if self._is_dropped:
            return
        self._is_dropped = True
        if self._events:
            self._loop.unwatch(self._client.fileno())
        self._client.close()
        self._on_drop()

    def _update(self) -> None:
        """Wait for what the stream can go on with. With nothing to wait for not even a hang-up is heard."""
        if self._is_dropped:
            return
        events = select.EPOLLOUT if self._outgoing else 0
        if not self._we_ended and self._credit > STREAM_FRAME_COST:
            events |= select.EPOLLIN
        if events == self._events:
            return
        fd = self._client.fileno()
        if not self._events:
            self._loop.watch(fd, self._ready, events)
        elif not events:
            self._loop.unwatch(fd)
        else:
            self._loop.change(fd, events)
        self._events = events

    def _ready(self, ready: int) -> None:
        if self._outgoing and ready & ~select.EPOLLIN:
            self._write()
        if not self._is_dropped and self._events & select.EPOLLIN and ready & ~select.EPOLLOUT:
            self._read()

    def _read(self) -> None:
        try:
            data = self._client.recv(min(STREAM_CHUNK_BYTES, self._credit - STREAM_FRAME_COST))
        except BlockingIOError:
            return
        except OSError as error:
            self._abort(error)
            return
        if data:
            self._credit -= stream_cost(len(data))
            self._tell({"do": StreamOp.DATA}, data)
        else:
            self._we_ended = True
            self._tell({"do": StreamOp.END}, b"")
        self._settle()

    def _write(self) -> None:
        if self._outgoing:
            try:
                sent = self._client.send(self._outgoing)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._abort(error)
                return
            del self._outgoing[:sent]
        due = self._owed - len(self._outgoing)
        if due >= STREAM_WINDOW // 4:
            self._owed -= due
            self._tell({"do": StreamOp.CREDIT, "n": due}, b"")
        if self._host_ended and not self._outgoing:
            try:
                self._client.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._abort(error)
                return
        self._settle()

    def _settle(self) -> None:
        if self._we_ended and self._host_ended and not self._outgoing:
            self.drop()
        else:
            self._update()

    def _abort(self, error: OSError) -> None:
        self._tell({"do": StreamOp.CLOSE, "error": error.strerror}, b"")
        self.drop()
