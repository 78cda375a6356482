"""The host's end of the link to one guest: requests out, answers in, matched by id.

Everything the guest says is untrusted: a frame that breaks the rules closes the link for good.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from sandbox.pipes import Pipes
from sandbox.wire import Decoder, Frame, FrameError, encode

UNSOLICITED_BYTES = 64 * 1024 * 1024
"""How much a guest may send for requests that nobody waits for any more."""


class Stream(Protocol):
    """A pair of byte streams to the guest."""

    def recv(self) -> bytes:
        """The next bytes; empty at the end. Raises OSError."""

    def send_all(self, data: bytes) -> None:
        """Send everything. Raises OSError."""

    def close(self) -> None:
        """Close both directions; a `recv` under way returns or raises."""


class Carrier(Protocol):
    """Takes the frames that belong to streams, not to requests."""

    def take(self, frame: Frame) -> None:
        """Take a frame without blocking. Raises BadStreamFrame."""

    def close(self) -> None:
        """The link is gone."""


CarrierOf = Callable[[Callable[[dict[str, Any], bytes], None], Callable[[str], None]], Carrier]
"""Makes the carrier of a link, given how to send a frame and how to close the link for a violation."""


class LinkClosed(Exception):
    """The link is gone. `violation` says which rule the guest broke, "" when it did not."""

    def __init__(self, violation: str = "") -> None:
        super().__init__(violation or "the link is closed")
        self.violation = violation


class LinkTimeout(Exception):
    """No answer in time; the link may be dead."""


class _Violation(Exception):
    """A frame that the rules do not allow."""


class _Pending:
    """A request that waits for its answer."""

    __slots__ = ("answer", "arrived", "on_output", "output_error")

    def __init__(self, on_output: Callable[[bytes], None] | None) -> None:
        # A bare lock, held until the answer is there, is several times cheaper than an event.
        self.arrived = threading.Lock()
        self.arrived.acquire()
        self.answer: Frame | None = None
        self.on_output = on_output
        self.output_error: Exception | None = None


class Link:
    """One link. Thread-safe; it owns the stream and one reader thread until it is closed."""

    def __init__(
        self,
        stream: Stream,
        name: str,
        on_beat: Callable[[dict[str, Any]], None] | None = None,
        carrier_of: CarrierOf | None = None,
    ) -> None:
        self._stream = stream
        self._on_beat = on_beat
        self._decoder = Decoder()
        self._pending: dict[int, _Pending] = {}
        self._beats: set[int] = set()
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._last_id = 0
        self._unsolicited = 0
        self._violation = ""
        self.is_open = True
        self.last_heard = time.monotonic()
        self._carrier = carrier_of(self.send, self.close) if carrier_of is not None else None
        self.pipes = Pipes(self.send)
        """Commands in the box that this link has the pipes of."""
        self._reader = threading.Thread(target=self._read, name=f"link-{name}", daemon=True)
        self._reader.start()

    def ask(
        self, head: dict[str, Any], body: bytes, timeout_s: float, on_output: Callable[[bytes], None] | None = None
    ) -> Frame:
        """The guest's answer. `on_output` is called in the reader thread for each piece of streamed output.

        Raises:
            LinkClosed: before the answer came; whether the request arrived is unknown.
            LinkTimeout: no answer in time.
            FrameTooLarge: the request cannot be sent; nothing was.
        """
        pending = _Pending(on_output)
        with self._lock:
            if not self.is_open:
                raise LinkClosed(self._violation)
            self._last_id = request_id = self._last_id + 1
            self._pending[request_id] = pending
        try:
            data = encode({"id": request_id, **head}, body)
            with self._send_lock:
                self._stream.send_all(data)
            if not pending.arrived.acquire(timeout=timeout_s):
                raise LinkTimeout
        except OSError:
            self.close()
            raise LinkClosed(self._violation) from None
        finally:
            self._pending.pop(request_id, None)
        if pending.output_error is not None:
            raise pending.output_error
        if pending.answer is None:
            raise LinkClosed(self._violation)
        return pending.answer

    def beat(self) -> None:
        """Send a heartbeat without waiting; left out while another request is being sent (which is one too)."""
        if not self._send_lock.acquire(blocking=False):
            return
        try:
            with self._lock:
                self._last_id = request_id = self._last_id + 1
                self._beats.add(request_id)
            self._stream.send_all(encode({"id": request_id, "op": "ping"}))
        except OSError:
            self.close()
        finally:
            self._send_lock.release()

    def send(self, head: dict[str, Any], body: bytes) -> None:
        """Send a frame that is no request; blocks while the guest does not read.

        Raises:
            OSError: the link is gone.
        """
        data = encode(head, body)
        try:
            with self._send_lock:
                self._stream.send_all(data)
        except OSError:
            self.close()
            raise

    def close(self, violation: str = "") -> None:
        """Close the stream; every request under way gets LinkClosed."""
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
            self._violation = violation
            waiting = list(self._pending.values())
        self._stream.close()
        if self._carrier is not None:
            self._carrier.close()
        self.pipes.close()
        for pending in waiting:
            if pending.arrived.locked() and pending.answer is None:
                pending.arrived.release()

    def _read(self) -> None:
        try:
            while data := self._stream.recv():
                self.last_heard = time.monotonic()
                for frame in self._decoder.feed(data):
                    self._take(frame)
        except OSError:
            self.close()
        except (FrameError, _Violation) as error:
            self.close(str(error))
        else:
            self.close()

    def _take(self, frame: Frame) -> None:
        if self._carrier is not None and "stream_id" in frame.head:
            self._carrier.take(frame)
            return
        if "pipe_id" in frame.head:
            self.pipes.take(frame)
            return
        request_id = frame.head.get("id")
        if type(request_id) is not int or not 0 < request_id <= self._last_id:
            raise _Violation(f"a frame for a request that was never made: {request_id!r:.100}")
        if request_id in self._beats:
            self._beats.discard(request_id)
            if self._on_beat is not None:
                self._on_beat(frame.head)
            return
        pending = self._pending.get(request_id)
        if pending is None:
            self._unsolicited += len(frame.body) + 1024
            if self._unsolicited > UNSOLICITED_BYTES:
                raise _Violation("too much for requests that nobody waits for")
        elif "event" in frame.head:
            self._take_output(pending, frame)
        else:
            del self._pending[request_id]
            pending.answer = frame
            pending.arrived.release()

    def _take_output(self, pending: _Pending, frame: Frame) -> None:
        if frame.head["event"] != "out" or pending.on_output is None:
            raise _Violation("an event that was not asked for")
        if pending.output_error is None:
            try:
                pending.on_output(frame.body)
            except Exception as error:
                pending.output_error = error
