"""Many connections over one link: one thread that does everything but resolve and connect.

What the guest says is checked here: more than its credit, or a stream it may not open, ends the link.
"""

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandbox.egress.dial import Policy, Refused, Unreachable, dial
from sandbox.egress.head import MAX_HEAD_BYTES, BadRequest, Request, parse_request
from sandbox.egress.limits import Budget, EgressLimits
from sandbox.egress.stream import Phase, Stream
from sandbox.egress.streams import Send, Streams
from sandbox.wire import STREAM_WINDOW, BadStreamFrame, Frame, StreamOp, stream_cost

log = logging.getLogger(__name__)

TICK_S = 0.5
INBOX_BYTES = 16 * 1024 * 1024
"""More than all windows of all streams together: only a guest that breaks the rules fills it."""
HEAD_END = b"\r\n\r\n"
MAX_NUMBER = 2**53


@dataclass
class Egress:
    """What one box may reach and has used up; outlives its links."""

    box_id: str
    policy: Policy
    limits: EgressLimits = field(default_factory=EgressLimits)

    def __post_init__(self) -> None:
        self.budget = Budget(self.limits)

    def carrier(self, send: Send, fail: Callable[[str], None]) -> "Carrier":
        """A carrier for a new link. `fail` closes the link and names the rule that the guest broke."""
        return Carrier(self, send, fail)


@dataclass(frozen=True)
class _Dialed:
    """What a dialing thread came back with."""

    stream: Stream
    request: Request
    connection: Any = None
    """The connected socket."""
    failure: Refused | Unreachable | None = None

    def close(self) -> None:
        """Nobody wants the connection."""
        if self.connection is not None:
            self.connection.close()


class Carrier:
    """The streams of one link. `take` and `close` may be called from any thread."""

    def __init__(self, egress: Egress, send: Send, fail: Callable[[str], None]) -> None:
        self._egress = egress
        self._limits = egress.limits
        self._budget = egress.budget
        self._send = send
        self._fail = fail
        self._lock = threading.Lock()
        self._inbox: deque[Frame] = deque()
        self._inbox_cost = 0
        self._results: deque[_Dialed] = deque()
        self._dialing = 0
        self._last_number = 0
        self._closed = False
        self._wake_fd = -1
        """While the thread runs."""

    def take(self, frame: Frame) -> None:
        """Take a frame from the guest; never blocks. The first one starts the thread.

        Raises:
            BadStreamFrame: the guest sends more than its windows allow.
        """
        with self._lock:
            if self._closed:
                return
            self._inbox_cost += stream_cost(len(frame.body))
            if self._inbox_cost > INBOX_BYTES:
                raise BadStreamFrame("more stream frames than the windows allow")
            self._inbox.append(frame)
            if self._wake_fd < 0:
                self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                threading.Thread(target=self._run, name=f"egress-{self._egress.box_id}", daemon=True).start()
            self._wake()

    def close(self) -> None:
        """End all streams; their sockets are closed by the carrier's thread."""
        with self._lock:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        self._streams = Streams(self._egress.box_id, self._limits, self._budget, self._send)
        self._streams.selector.register(self._wake_fd, selectors.EVENT_READ)
        try:
            self._wake()
            while not self._closed:
                self._round()
        except BadStreamFrame as error:
            self._fail(str(error))
        except OSError as error:
            log.info("egress ends with its link", extra={"box_id": self._egress.box_id, "error": str(error)})
            self._fail("")
        except Exception:
            log.exception("egress failed", extra={"box_id": self._egress.box_id})
            self._fail("")
        finally:
            self._end()

    def _end(self) -> None:
        for stream in self._streams:
            self._streams.drop(stream, "the link ended")
        with self._lock:
            self._closed = True
            while self._results:
                self._results.popleft().close()
            self._inbox.clear()
            self._streams.selector.close()
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _round(self) -> None:
        for key, events in self._streams.selector.select(self._timeout_s()):
            if key.data is None:
                os.eventfd_read(self._wake_fd)
            elif key.data in self._streams:
                self._streams.ready(key.data, events)
        while self._inbox and not self._closed:
            with self._lock:
                frame = self._inbox.popleft()
                self._inbox_cost -= stream_cost(len(frame.body))
            self._frame(frame)
        while self._results:
            self._dialed(self._results.popleft())
        self._streams.throttle()
        self._streams.expire()

    def _timeout_s(self) -> float | None:
        if not self._streams:
            return None
        return min(TICK_S, self._budget.wait_s or TICK_S)

    def _frame(self, frame: Frame) -> None:
        number, what = frame.head.get("stream_id"), frame.head.get("do")
        if type(number) is not int or not 0 < number < MAX_NUMBER:
            raise BadStreamFrame(f"a stream with the number {number!r:.50}")
        if what == StreamOp.OPEN:
            self._open(number)
            return
        if number > self._last_number:
            raise BadStreamFrame(f"{what!r:.20} for a stream that was never opened")
        stream = self._streams.get(number)
        if stream is None:
            self._late(frame)
            return
        match what:
            case StreamOp.DATA:
                self._data(stream, frame.body)
            case StreamOp.CREDIT:
                self._credit(stream, frame.head.get("n"))
            case StreamOp.END:
                self._ended(stream)
            case StreamOp.CLOSE:
                self._streams.drop(stream, "the client closed")
            case _:
                raise BadStreamFrame(f"a stream frame that does {what!r:.50}")

    def _late(self, frame: Frame) -> None:
        """The guest may not know yet that the stream is closed; it can have used up the credit it had."""
        self._streams.late_bytes -= stream_cost(len(frame.body))
        if self._streams.late_bytes < 0:
            raise BadStreamFrame("too much for streams that are closed")

    def _open(self, number: int) -> None:
        if number <= self._last_number:
            raise BadStreamFrame("a stream opened twice")
        self._last_number = number
        stream = self._streams.add(number)
        if len(self._streams) > self._limits.streams:
            words = f"this box has {self._limits.streams} connections open already: close some"
            self._streams.answer(stream, 503, words)
        elif self._budget.left_bytes <= 0:
            self._streams.answer(stream, 403, "this box has used up its bytes to and from the network")

    def _credit(self, stream: Stream, more: Any) -> None:
        if type(more) is not int or not 0 < more <= STREAM_WINDOW - stream.credit:
            raise BadStreamFrame("more credit than was used")
        stream.credit += more
        self._streams.touch(stream)
        self._streams.move(stream)

    def _ended(self, stream: Stream) -> None:
        stream.guest_ended = True
        if stream.phase is Phase.HEAD:
            self._streams.drop(stream, "the client asked for nothing", tell=True)
        self._streams.move(stream)

    def _data(self, stream: Stream, data: bytes) -> None:
        cost = stream_cost(len(data))
        stream.received += cost
        # Counted whatever becomes of it: the smallest frames are work too.
        self._budget.spend(cost)
        if stream.received > STREAM_WINDOW or stream.guest_ended:
            raise BadStreamFrame("more data than the window allows")
        match stream.phase:
            case Phase.HEAD:
                stream.to_host += data
                self._head(stream)
            case Phase.DIALING:
                stream.to_host += data
            case Phase.OPEN:
                self._streams.touch(stream)
                self._streams.upload(stream, data)
            case Phase.ANSWERED:
                pass
        self._streams.move(stream)

    def _head(self, stream: Stream) -> None:
        end = stream.to_host.find(HEAD_END)
        if end < 0 and len(stream.to_host) <= MAX_HEAD_BYTES:
            return
        if end < 0 or end > MAX_HEAD_BYTES:
            self._streams.answer(stream, 431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
            return
        end += len(HEAD_END)
        try:
            request = parse_request(bytes(stream.to_host[:end]))
            stream.host, stream.port = request.host, request.port
            self._egress.policy.check(request.host, request.port)
        except BadRequest as error:
            self._streams.answer(stream, error.status, str(error))
        except Refused as error:
            self._streams.answer(stream, 403, str(error))
        else:
            del stream.to_host[:end]
            self._start_dialing(stream, request)

    def _start_dialing(self, stream: Stream, request: Request) -> None:
        if self._dialing >= self._limits.streams:
            # Threads of streams that are closed already still wait for a resolver.
            self._streams.answer(stream, 503, "too many connections are being made: try again later")
            return
        stream.phase = Phase.DIALING
        # The dialing thread keeps its own time; this is for a resolver that never comes back.
        stream.deadline = time.monotonic() + self._limits.dial_s + 1
        self._dialing += 1
        name = f"dial-{self._egress.box_id}-{stream.number}"
        threading.Thread(target=self._dial, args=(stream, request), name=name, daemon=True).start()

    def _dial(self, stream: Stream, request: Request) -> None:
        """Runs in a thread of its own."""
        try:
            connection = dial(self._egress.policy, request.host, request.port, self._limits.dial_s)
            result = _Dialed(stream, request, connection)
        except (Refused, Unreachable) as error:
            result = _Dialed(stream, request, failure=error)
        with self._lock:
            if not self._closed:
                self._results.append(result)
                self._wake()
                return
        result.close()

    def _dialed(self, result: _Dialed) -> None:
        stream, failure = result.stream, result.failure
        self._dialing -= 1
        if stream not in self._streams or stream.phase is not Phase.DIALING:
            result.close()
        elif failure is not None:
            self._streams.answer(stream, 403 if isinstance(failure, Refused) else 502, str(failure))
        else:
            self._streams.connect(stream, result.connection, result.request)
