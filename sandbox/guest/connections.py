"""Connections from the host to ports of the box's loopback: no network leads into a box, so the link does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.guest.pool import Pool
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.stream import Stream
from sandbox.wire import CONNECTIONS_MAX, Frame, PipeOp, RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    from sandbox.guest.calls import Answer

CONNECT_S = 2.0
"""A server that does not take a connection for so long has its backlog full."""


class Connections:
    """All connections of the link; they end with it."""

    def __init__(self, loop: Loop, pool: Pool, send: Callable[[dict[str, Any], bytes], bool]) -> None:
        self._loop = loop
        self._pool = pool
        self._send = send
        self._streams: dict[int, Stream] = {}
        self._opening: set[int] = set()
        self._links = 0
        """How many links were lost: what was begun on an earlier one is of no use."""

    def open(self, frame: Frame, answer: Callable[[Answer], None]) -> None:
        """Connect to a port, and answer once the connection stands or cannot be had.

        Raises:
            Refusal: it is not tried.
        """
        number, port = frame.head["pipe_id"], frame.head["port"]
        if not isinstance(number, int) or number in self._streams or number in self._opening:
            raise Refusal(RefusalCode.INVALID_PARAM, "no new number for a connection")
        if not isinstance(port, int) or not 0 < port < 65_536:
            raise Refusal(RefusalCode.INVALID_PARAM, "no port")
        if len(self._streams) + len(self._opening) >= CONNECTIONS_MAX:
            raise Refusal(RefusalCode.LIMIT, f"{CONNECTIONS_MAX} connections into the box are open already")
        self._opening.add(number)
        links = self._links

        def job() -> Callable[[], None]:
            try:
                client = _connected(port)
            except OSError as error:
                refusal = _refusal(error, port)
                return lambda: self._failed(number, links, answer, refusal)
            return lambda: self._connected(number, links, answer, client)

        self._pool.submit(job)

    def frame(self, frame: Frame) -> bool:
        """Take what the host says of a connection; False when the number is none of one."""
        stream = self._streams.get(frame.head["pipe_id"])
        if stream is None:
            return False
        stream.take(frame)
        return True

    def link_lost(self) -> None:
        """End every connection."""
        self._links += 1
        self._opening.clear()
        for stream in list(self._streams.values()):
            stream.drop()

    def _connected(self, number: int, links: int, answer: Callable[[Answer], None], client: socket.socket) -> None:
        if links != self._links:
            client.close()
            return
        self._opening.discard(number)
        stream = self._streams[number] = Stream(
            self._loop,
            client,
            lambda head, body: self._send({"pipe_id": number, **head}, body),
            lambda: self._dropped(number),
        )
        answer(({}, b""))
        stream.begin()

    def _failed(self, number: int, links: int, answer: Callable[[Answer], None], refusal: Refusal) -> None:
        if links == self._links:
            self._opening.discard(number)
            answer(refusal.answer())

    def _dropped(self, number: int) -> None:
        del self._streams[number]
        # Whoever ended it, the host hears of the end; of one that it knows of already it takes no notice.
        self._send({"pipe_id": number, "do": PipeOp.CLOSE}, b"")


def _connected(port: int) -> socket.socket:
    """A connection to a port of the loopback: servers listen on either of its addresses."""
    first: OSError | None = None
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            client = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            first = first or error
            continue
        try:
            client.settimeout(CONNECT_S)
            client.connect((address, port))
        except OSError as error:
            client.close()
            first = first or error
        else:
            return client
    assert first is not None
    raise first


def _refusal(error: OSError, port: int) -> Refusal:
    if error.errno == errno.ECONNREFUSED:
        return Refusal(RefusalCode.NOT_FOUND, f"nothing listens on port {port} of the box")
    if isinstance(error, TimeoutError):
        return Refusal(RefusalCode.LIMIT, f"what listens on port {port} of the box takes no connection")
    return from_os_error(error, f"cannot connect to port {port} of the box")
