"""One connected socket to a guest: what the streams of a door, a relay and a socket pair share."""

import socket
import struct
from contextlib import suppress

READ_BYTES = 256 * 1024
SEND_TIMEOUT_S = 30
"""A guest that takes nothing for so long holds up no caller any more."""


class SocketStream:
    """Bytes to and from a guest, as they are."""

    def __init__(self, connection: socket.socket) -> None:
        """`connection` is blocking from now on."""
        self._socket = connection
        connection.settimeout(None)
        # The kernel's own limit: it leaves the reader, which waits as long as need be, alone.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))

    def recv(self) -> bytes:
        """The next bytes; empty at the end."""
        return self._socket.recv(READ_BYTES)

    def send_all(self, data: bytes) -> None:
        """Send everything.

        Raises:
            OSError: the connection is gone, or nothing was taken for `SEND_TIMEOUT_S`.
        """
        self._socket.sendall(data)

    def close(self) -> None:
        """Close both directions; the other end sees that nothing more comes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
