"""Server-sent events out of raw bytes: model → **sse** → deltas.

Bytes go in as the socket gives them, cut anywhere; whole events come out. Source: the event stream format of
https://html.spec.whatwg.org/multipage/server-sent-events.html, except that an event at the very end counts
also without its blank line, because endpoints leave it out.
"""

from dataclasses import dataclass, field

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A single event above this is not a model's reply."""


class SseTooLarge(ValueError):
    """One event exceeds `MAX_EVENT_BYTES`."""


@dataclass
class SseDecoder:
    """Gathers lines to the `data` of events; comments, ids and retry hints are dropped."""

    _pending: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)
    _size_bytes: int = 0
    _after_cr: bool = False
    _at_start: bool = True

    def feed(self, received: bytes) -> list[str]:
        """The data of every event that `received` completes, in order.

        Raises:
            SseTooLarge: An event does not end.
        """
        if self._after_cr and received:
            self._after_cr = False
            if received[:1] == b"\n":
                received = received[1:]
        self._pending += received
        if len(self._pending) + self._size_bytes > MAX_EVENT_BYTES:
            raise SseTooLarge(f"one event of more than {MAX_EVENT_BYTES} bytes")
        if b"\n" not in received and b"\r" not in received:
            return []
        lines = bytes(self._pending).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._after_cr = self._pending.endswith(b"\r")
        self._pending = bytearray(lines.pop())
        return [data for line in lines if (data := self._line(line)) is not None]

    def close(self) -> list[str]:
        """The data of an event that the end of the stream completes: at most one."""
        last, self._pending = bytes(self._pending), bytearray()
        events = [data for line in (last, b"") if (data := self._line(line)) is not None]
        return events

    def _line(self, line: bytes) -> str | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if not self._data:
                return None
            data = b"\n".join(self._data).decode("utf-8", "replace")
            self._data, self._size_bytes = [], 0
            return data
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size_bytes += len(value)
        return None
