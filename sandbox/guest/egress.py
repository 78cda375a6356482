"""The box's way out: connections to the proxy port become streams on the link. What they may reach the host decides."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.wire import (
    PROXY_PORT,
    STREAM_CHUNK_BYTES,
    STREAM_FRAME_COST,
    STREAM_WINDOW,
    STREAMS_MAX,
    Frame,
    StreamOp,
    stream_cost,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

BACKLOG = 128
PAUSE_S = 0.1


class Stream:
    """One client's connection."""

    __slots__ = ("client", "credit", "events", "host_ended", "number", "outgoing", "owed", "we_ended")

    def __init__(self, number: int, client: socket.socket) -> None:
        self.number = number
        self.client = client
        self.credit = STREAM_WINDOW
        """What may be sent to the host."""
        self.outgoing = bytearray()
        """What the client has not taken yet."""
        self.owed = 0
        """Cost of the frames received for which no credit was given back."""
        self.events = 0
        self.we_ended = False
        self.host_ended = False


class Egress:
    """Listens once told to; all streams end with the link."""

    def __init__(self, loop: Loop, send: Callable[[dict[str, Any], bytes], bool]) -> None:
        """`send` gives False when there is no link."""
        self._loop = loop
        self._send = send
        self._listener: socket.socket | None = None
        self._is_paused = False
        self._streams: dict[int, Stream] = {}
        self._last_number = 0

    def listen(self) -> None:
        """Open the proxy port, unless it is open."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", PROXY_PORT))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)

    def link_lost(self) -> None:
        """End every stream: the host has forgotten them."""
        for stream in list(self._streams.values()):
            self._drop(stream)

    def frame(self, frame: Frame) -> None:
        """Take what the host says of a stream."""
        head = frame.head
        stream = self._streams.get(head["stream_id"])
        if stream is None:
            return
        match head["do"]:
            case StreamOp.DATA:
                stream.owed += stream_cost(len(frame.body))
                stream.outgoing += frame.body
                self._write(stream)
            case StreamOp.CREDIT:
                stream.credit += head["n"]
                self._update(stream)
            case StreamOp.END:
                stream.host_ended = True
                self._write(stream)
            case StreamOp.CLOSE:
                self._drop(stream)

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        try:
            client, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptor is left; the connection waits in the backlog.
            self._pause()
            self._loop.after(PAUSE_S, self._resume)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_number += 1
        stream = Stream(self._last_number, client)
        if not self._send({"stream_id": stream.number, "do": StreamOp.OPEN}, b""):
            client.close()
            return
        self._streams[stream.number] = stream
        if len(self._streams) >= STREAMS_MAX:
            self._pause()
        self._update(stream)

    def _pause(self) -> None:
        if self._listener is not None and not self._is_paused:
            self._is_paused = True
            self._loop.unwatch(self._listener.fileno())

    def _resume(self) -> None:
        if self._listener is not None and self._is_paused and len(self._streams) < STREAMS_MAX:
            self._is_paused = False
            self._loop.watch(self._listener.fileno(), self._accept)

    def _update(self, stream: Stream) -> None:
        """Wait for what the stream can go on with. With nothing to wait for not even a hang-up is heard."""
        if stream.number not in self._streams:
            return
        events = select.EPOLLOUT if stream.outgoing else 0
        if not stream.we_ended and stream.credit > STREAM_FRAME_COST:
            events |= select.EPOLLIN
        if events == stream.events:
            return
        fd = stream.client.fileno()
        if not stream.events:
            self._loop.watch(fd, lambda ready: self._ready(stream, ready), events)
        elif not events:
            self._loop.unwatch(fd)
        else:
            self._loop.change(fd, events)
        stream.events = events

    def _ready(self, stream: Stream, ready: int) -> None:
        if stream.outgoing and ready & ~select.EPOLLIN:
            self._write(stream)
        if stream.number in self._streams and stream.events & select.EPOLLIN and ready & ~select.EPOLLOUT:
            self._read(stream)

    def _read(self, stream: Stream) -> None:
        try:
            data = stream.client.recv(min(STREAM_CHUNK_BYTES, stream.credit - STREAM_FRAME_COST))
        except BlockingIOError:
            return
        except OSError:
            self._abort(stream)
            return
        if data:
            stream.credit -= stream_cost(len(data))
            self._send({"stream_id": stream.number, "do": StreamOp.DATA}, data)
        else:
            stream.we_ended = True
            self._send({"stream_id": stream.number, "do": StreamOp.END}, b"")
        self._settle(stream)

    def _write(self, stream: Stream) -> None:
        if stream.outgoing:
            try:
                sent = stream.client.send(stream.outgoing)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._abort(stream)
                return
            del stream.outgoing[:sent]
        due = stream.owed - len(stream.outgoing)
        if due >= STREAM_WINDOW // 4:
            stream.owed -= due
            self._send({"stream_id": stream.number, "do": StreamOp.CREDIT, "n": due}, b"")
        if stream.host_ended and not stream.outgoing:
            try:
                stream.client.shutdown(socket.SHUT_WR)
            except OSError:
                self._abort(stream)
                return
        self._settle(stream)

    def _settle(self, stream: Stream) -> None:
        if stream.we_ended and stream.host_ended and not stream.outgoing:
            self._drop(stream)
        else:
            self._update(stream)

    def _abort(self, stream: Stream) -> None:
        self._send({"stream_id": stream.number, "do": StreamOp.CLOSE}, b"")
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        if stream.events:
            self._loop.unwatch(stream.client.fileno())
        stream.client.close()
        self._resume()
