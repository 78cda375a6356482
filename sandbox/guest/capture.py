"""What is kept of a command's output: head, tail and counts, in bounded memory."""

STREAM_NAMES = ("stdout", "stderr")


class Capture:
    """Head and tail of one stream, at most `keep_bytes` each."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._newlines = 0
        self._last = b"\n"
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        self._newlines += data.count(b"\n")
        self._last = data[-1:]
        room = self._keep - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Trimming only at twice the size keeps the cost of a flood linear.
            if len(self._tail) > 2 * self._keep:
                del self._tail[: len(self._tail) - self._keep]

    def parts(self) -> tuple[bytes, bytes]:
        """Head and tail; the tail is empty when nothing was dropped."""
        if self.total_bytes <= 2 * self._keep:
            return bytes(self._head + self._tail), b""
        return bytes(self._head), bytes(self._tail[len(self._tail) - self._keep :]) if self._keep else b""

    def summary(self, head: bytes, tail: bytes) -> dict[str, int]:
        """Counts and the sizes of the parts, for the head of the answer."""
        return {
            "head": len(head),
            "tail": len(tail),
            "bytes": self.total_bytes,
            "lines": self._newlines + (self._last != b"\n"),
            "dropped": self.total_bytes - len(head) - len(tail),
        }
