"""Bytes to and from a relay that the Docker engine executes in a box."""

from typing import Any

from sandbox.socket_stream import SocketStream

_HEADER_BYTES = 8
_STDOUT, _STDERR = 1, 2
MAX_ERROR_BYTES = 2000


class ExecStream(SocketStream):
    """The hijacked connection of one `exec`: raw bytes in, the engine's framed streams out."""

    def __init__(self, connection: Any) -> None:
        """`connection` is what `exec_start(socket=True)` gives: a SocketIO around the socket."""
        super().__init__(connection._sock)
        self._connection = connection
        self._header = b""
        self._left = 0
        self._kind = 0
        self._is_first = True
        self.errors = b""
        """What the relay printed on its standard error, the first of it."""

    def recv(self) -> bytes:
        """The next bytes of the relay's standard output; empty at the end."""
        while data := super().recv():
            out = self._split(data)
            if out:
                if self._is_first and out[0] != 0:
                    # No frame begins so: it is the engine, which says here why it could not execute the relay.
                    raise ConnectionError(out[:MAX_ERROR_BYTES].decode("utf-8", "replace").strip())
                self._is_first = False
                return out
        return b""

    def close(self) -> None:
        """Close the connection; the relay sees the end of its input."""
        super().close()
        # The SocketIO holds the socket open: both have to be closed.
        self._connection.close()

    def _split(self, data: bytes) -> bytes:
        """Take the engine's 8-byte headers out (stream, three zeros, length)."""
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._left == 0:
                taken = data[position : position + _HEADER_BYTES - len(self._header)]
                self._header += taken
                position += len(taken)
                if len(self._header) == _HEADER_BYTES:
                    self._kind, self._left = self._header[0], int.from_bytes(self._header[4:], "big")
                    self._header = b""
                continue
            piece = data[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            if self._kind == _STDOUT:
                out.append(piece)
            else:
                self.errors = (self.errors + piece)[:MAX_ERROR_BYTES]
        return out[0] if len(out) == 1 else b"".join(out)
