"""Where a request's body ends: what comes after it would be another request, which nobody has judged."""

import re
from typing import Protocol

MAX_LINE_BYTES = 256


class BadBody(Exception):
    """The body is not what its head says."""


class Body(Protocol):
    """Takes the bytes after the head."""

    is_done: bool
    """The body is complete."""

    def take(self, data: bytes) -> bytes:
        """What of `data` belongs to the body; the rest is dropped.

        Raises:
            BadBody: it cannot be read.
        """


class Sized:
    """A body of a known number of bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes
        self.is_done = size_bytes == 0

    def take(self, data: bytes) -> bytes:
        """The bytes up to the end."""
        taken = data[: self._left]
        self._left -= len(taken)
        self.is_done = self._left == 0
        return taken


class Chunked:
    """A body in chunks, without extensions or trailers. What it gives has the same chunks, written anew."""

    def __init__(self) -> None:
        self.is_done = False
        self._line = bytearray()
        self._left = 0
        self._expects = b""
        """What must come before the next size: the line end of a chunk, or of the whole."""
        self._is_last = False

    def take(self, data: bytes) -> bytes:
        """The bytes up to the end of the last chunk."""
        out: list[bytes] = []
        position = 0
        while position < len(data) and not self.is_done:
            if self._left:
                piece = data[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                out.append(piece)
                if not self._left:
                    self._expects = b"\r\n"
                    out.append(b"\r\n")
            elif self._expects:
                self._match(data[position])
                position += 1
            else:
                position = self._size(data, position, out)
        return b"".join(out)

    def _match(self, byte: int) -> None:
        if byte != self._expects[0]:
            raise BadBody("a chunk does not end where it should")
        self._expects = self._expects[1:]
        self.is_done = self._is_last and not self._expects

    def _size(self, data: bytes, position: int, out: list[bytes]) -> int:
        end = data.find(b"\n", position)
        stop = len(data) if end < 0 else end + 1
        self._line += data[position:stop]
        if len(self._line) > MAX_LINE_BYTES:
            raise BadBody("the size of a chunk is too long")
        if end < 0:
            return stop
        found = re.fullmatch(rb"([0-9a-fA-F]{1,12})\r\n", bytes(self._line))
        if found is None:
            raise BadBody("the size of a chunk is no number")
        self._line.clear()
        self._left = int(found[1], 16)
        out.append(b"%x\r\n" % self._left)
        if not self._left:
            self._is_last = True
            self._expects = b"\r\n"
            out.append(b"\r\n")
        return stop
