"""The box's way out: connections to the proxy port become streams on the link. What they may reach the host decides."""

from __future__ import annotations

import socket
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.guest.stream import Stream
from sandbox.wire import PROXY_PORT, STREAMS_MAX, Frame, StreamOp

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

BACKLOG = 128
PAUSE_S = 0.1


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
            stream.drop()

    def frame(self, frame: Frame) -> None:
        """Take what the host says of a stream."""
        stream = self._streams.get(frame.head["stream_id"])
        if stream is not None:
            stream.take(frame)

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
        self._last_number = number = self._last_number + 1
        if not self._send({"stream_id": number, "do": StreamOp.OPEN}, b""):
            client.close()
            return
        stream = Stream(
            self._loop,
            client,
            lambda head, body: self._send({"stream_id": number, **head}, body),
            lambda: self._dropped(number),
        )
        self._streams[number] = stream
        if len(self._streams) >= STREAMS_MAX:
            self._pause()
        stream.begin()

    def _pause(self) -> None:
        if self._listener is not None and not self._is_paused:
            self._is_paused = True
            self._loop.unwatch(self._listener.fileno())

    def _resume(self) -> None:
        if self._listener is not None and self._is_paused and len(self._streams) < STREAMS_MAX:
            self._is_paused = False
            self._loop.watch(self._listener.fileno(), self._accept)

    def _dropped(self, number: int) -> None:
        self._streams.pop(number, None)
        self._resume()
