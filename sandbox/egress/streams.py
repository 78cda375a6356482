"""The open connections of one link and the bytes that go to and fro. Used by the carrier's thread only."""

import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.egress import answers
from sandbox.egress.body import BadBody
from sandbox.egress.head import Request
from sandbox.egress.limits import Budget, EgressLimits
from sandbox.egress.stream import Phase, Stream
from sandbox.wire import STREAM_FRAME_COST, STREAM_WINDOW, StreamOp, stream_cost

CREDIT_STEP = STREAM_WINDOW // 4
"""Credit goes back in pieces of at least this; more than a full frame always remains."""

LATE_FRAMES = 8
"""Frames without data that may cross with the end of a stream: credit for the window in pieces, end, close."""

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any], bytes], None]
"""Sends a frame to the guest. Raises OSError when the link is gone; may block while the guest does not read."""


class Streams:
    """Every stream is in here until it is over."""

    def __init__(self, box_id: str, limits: EgressLimits, budget: Budget, send: Send) -> None:
        self._box_id = box_id
        self._limits = limits
        self._budget = budget
        self._send = send
        self._open: dict[int, Stream] = {}
        self._is_throttled = False
        self._is_applied = False
        """Whether the sockets are watched as for a stream that is throttled."""
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        """The sockets to the hosts; the data of a key is the stream."""
        self.late_bytes = 0
        """What may still come for streams that are closed here and not yet in the guest."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, stream: Stream) -> bool:
        return self._open.get(stream.number) is stream

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._open.values()))

    def get(self, number: int) -> Stream | None:
        """The open stream of this number."""
        return self._open.get(number)

    def add(self, number: int) -> Stream:
        """A new stream, whose head has to come now."""
        stream = self._open[number] = Stream(number, time.monotonic() + self._limits.head_s)
        return stream

    def answer(self, stream: Stream, status: int, words: str) -> None:
        """Answer in the host's place."""
        stream.outcome = f"refused: {words}"
        stream.to_host.clear()
        stream.to_guest += answers.refusal(status, words)
        stream.host_ended = True
        stream.phase = Phase.ANSWERED
        stream.deadline = time.monotonic() + self._limits.linger_s
        self.move(stream)

    def connect(self, stream: Stream, connection: socket.socket, request: Request) -> None:
        """Begin to carry: the request as it was understood, then what the client sent after it."""
        stream.socket = connection
        stream.phase = Phase.OPEN
        stream.body = request.body
        early, stream.to_host = bytes(stream.to_host), bytearray(request.head)
        if stream.body is None:
            stream.to_guest += answers.ESTABLISHED
        self.touch(stream)
        self.upload(stream, early)
        self.move(stream)

    def upload(self, stream: Stream, data: bytes) -> None:
        """Take what the client sent to the host; what is beyond its request's body is dropped."""
        stream.up_bytes += len(data)
        if stream.body is not None:
            try:
                data = stream.body.take(data)
            except BadBody as error:
                self.drop(stream, f"refused: {error}", tell=True)
                return
        stream.to_host += data

    def ready(self, stream: Stream, events: int) -> None:
        """Go on with a stream whose socket can be read or written."""
        if events & selectors.EVENT_READ:
            self._read_host(stream)
        self.move(stream)

    def _read_host(self, stream: Stream) -> None:
        if not stream.wants_host or stream.socket is None:
            return
        try:
            data = stream.socket.recv(stream.room_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(stream, f"lost: {error.strerror}", tell=True)
            return
        if data:
            self.touch(stream)
            self._budget.spend(len(data))
            stream.down_bytes += len(data)
            stream.to_guest += data
            return
        stream.host_ended = True
        if stream.body is not None:
            # Nobody is left to take the rest of the request.
            stream.phase = Phase.ANSWERED

    def move(self, stream: Stream) -> None:
        """Whatever the stream can do now without waiting."""
        if stream in self:
            self._write_guest(stream)
        if stream in self:
            self._write_host(stream)
        if stream in self:
            self._give_credit(stream)
            self._watch(stream)
        if stream.end_sent and stream.guest_ended and (stream.shut or stream.phase is Phase.ANSWERED):
            self.drop(stream, stream.outcome)

    def _write_guest(self, stream: Stream) -> None:
        while stream.to_guest and stream.room_bytes:
            piece = bytes(stream.to_guest[: stream.room_bytes])
            del stream.to_guest[: len(piece)]
            stream.credit -= stream_cost(len(piece))
            self._send({"stream_id": stream.number, "do": StreamOp.DATA}, piece)
        if stream.host_ended and not stream.to_guest and not stream.end_sent:
            stream.end_sent = True
            self._send({"stream_id": stream.number, "do": StreamOp.END}, b"")

    def _write_host(self, stream: Stream) -> None:
        if stream.socket is None or stream.phase is not Phase.OPEN:
            if stream.phase is Phase.ANSWERED:
                stream.to_host.clear()
            return
        try:
            if stream.to_host:
                sent = stream.socket.send(stream.to_host)
                del stream.to_host[:sent]
            # A plain request says itself where it ends; hosts take a closed direction for a client that gave up.
            if stream.guest_ended and not stream.to_host and not stream.shut:
                stream.shut = True
                if stream.body is None:
                    stream.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(stream, f"lost: {error.strerror}", tell=True)

    def _give_credit(self, stream: Stream) -> None:
        due = stream.credit_due
        # Asked anew each time: one round may take in far more than the rate allows.
        if due >= CREDIT_STEP and not stream.guest_ended and not self._must_wait():
            stream.received -= due
            self._send({"stream_id": stream.number, "do": StreamOp.CREDIT, "n": due}, b"")

    def _must_wait(self) -> bool:
        self._is_throttled = self._is_throttled or self._budget.wait_s > 0
        return self._is_throttled

    def _watch(self, stream: Stream) -> None:
        if stream.socket is None:
            return
        events = selectors.EVENT_WRITE if stream.to_host and stream.phase is Phase.OPEN else 0
        if stream.wants_host and not self._is_throttled:
            events |= selectors.EVENT_READ
        if events == stream.events:
            return
        if not stream.events:
            self.selector.register(stream.socket, events, stream)
        elif not events:
            self.selector.unregister(stream.socket)
        else:
            self.selector.modify(stream.socket, events, stream)
        stream.events = events

    def touch(self, stream: Stream) -> None:
        """The stream is not idle; a request that is still to be made or was refused has no more time for it."""
        if stream.phase is Phase.OPEN or stream.socket is not None:
            stream.deadline = time.monotonic() + self._limits.idle_s

    def throttle(self) -> None:
        """Stop or go on with everything as rate and total allow."""
        if self._budget.left_bytes <= 0:
            for stream in self:
                if stream.phase is not Phase.ANSWERED:
                    self.drop(stream, "refused: the box has used up its bytes", tell=True)
        is_throttled = self._budget.wait_s > 0
        if is_throttled == self._is_throttled == self._is_applied:
            return
        self._is_throttled = self._is_applied = is_throttled
        for stream in self:
            self.move(stream)

    def expire(self) -> None:
        """Give up the streams whose time is over."""
        now = time.monotonic()
        for stream in [stream for stream in self._open.values() if stream.deadline < now]:
            match stream.phase:
                case Phase.HEAD:
                    self.answer(stream, 408, "the request's head did not come in time")
                case Phase.DIALING:
                    self.answer(stream, 504, f"{stream.host} could not be resolved and connected to in time")
                case Phase.OPEN:
                    self.drop(stream, "idle for too long", tell=True)
                case Phase.ANSWERED:
                    self.drop(stream, stream.outcome, tell=True)

    def drop(self, stream: Stream, outcome: str, *, tell: bool = False) -> None:
        """Forget the stream; the guest is told unless it knows."""
        if self._open.pop(stream.number, None) is None:
            return
        self.late_bytes += max(0, STREAM_WINDOW - stream.received) + LATE_FRAMES * STREAM_FRAME_COST
        if stream.socket is not None:
            if stream.events:
                self.selector.unregister(stream.socket)
            stream.socket.close()
        log.info(
            "egress",
            extra={
                "box_id": self._box_id,
                "host": stream.host,
                "port": stream.port,
                "outcome": outcome,
                "up_bytes": stream.up_bytes,
                "down_bytes": stream.down_bytes,
                "duration_ms": round((time.monotonic() - stream.began) * 1000),
            },
        )
        if tell:
            self._send({"stream_id": stream.number, "do": StreamOp.CLOSE}, b"")
