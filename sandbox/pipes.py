"""The host's end of pipes: what is written goes to a command or a port in the box, what comes from there comes back.

Everything the guest says is untrusted: more than the window allows ends the link.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.wire import (
    PIPE_ERROR_BYTES,
    STREAM_CHUNK_BYTES,
    STREAM_FRAME_COST,
    STREAM_WINDOW,
    BadStreamFrame,
    Frame,
    PipeOp,
    stream_cost,
)

Send = Callable[[dict[str, Any], bytes], None]


class PipeBroken(Exception):
    """The pipe is closed; the message says what is known of why."""


@dataclass(frozen=True)
class PipeEnd:
    """How a pipe ended."""

    words: str
    """For people."""
    said: str
    """The end of what a command said on standard error."""
    exit_code: int | None = None
    """Of a command; this and `signal` are None where its end was not seen, and for connections."""
    signal: int | None = None


@dataclass(frozen=True)
class Tty:
    """The size of a terminal."""

    rows: int
    cols: int


@dataclass(frozen=True)
class Listener:
    """Who hears of a pipe, in the link's reader thread; none of these may block."""

    on_data: Callable[[bytes], None]
    """Gets what comes; `Pipe.took` makes room for more."""
    on_end: Callable[[PipeEnd], None]
    """Called once, at the end; also when a command could not be started."""
    on_errors: Callable[[bytes], None] | None = None
    """Gets what a command says on standard error, which costs room as well; without it only the end of that is kept."""
    on_eof: Callable[[], None] | None = None
    """Of a connection: nothing more comes. A command's pipe has none."""
    on_credit: Callable[[int], None] | None = None
    """Is told how much more may be written, for those who pass that on."""


class Pipe:
    """One command or connection. `write`, `end`, `close` and their like from any thread."""

    def __init__(self, number: int, send: Send, listener: Listener) -> None:
        self.number = number
        self._send = send
        self._listener = listener
        self._has_eof = False
        self._room = threading.Condition()
        self._credit = STREAM_WINDOW
        self._received = 0
        """Cost of the frames that came and for which no credit was given back."""
        self._ended: PipeEnd | None = None

    @property
    def has_ended(self) -> bool:
        """True once the listener was told of the end, or is about to be."""
        return self._ended is not None

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send bytes to the command's standard input, or the port; blocks while nobody reads there.

        Raises:
            PipeBroken: it has ended, or nobody read for that long.
        """
        left = memoryview(data)
        while left:
            with self._room:
                if not self._room.wait_for(lambda: self._ended or self._credit > STREAM_FRAME_COST, timeout_s):
                    raise PipeBroken("the command does not read")
                if self._ended is not None:
                    raise PipeBroken(self._ended.words)
                size = min(len(left), STREAM_CHUNK_BYTES, self._credit - STREAM_FRAME_COST)
                self._credit -= stream_cost(size)
            self._tell({"do": PipeOp.DATA}, bytes(left[:size]))
            left = left[size:]

    def took(self, size_bytes: int) -> None:
        """Let the command print as much again as was taken of `on_data`.

        Raises:
            PipeBroken: the link is gone.
        """
        with self._room:
            due = min(self._received, size_bytes)
            self._received -= due
        if due:
            self._tell({"do": PipeOp.CREDIT, "n": due}, b"")

    def resize(self, tty: Tty) -> None:
        """Tell the command's terminal how large it is.

        Raises:
            PipeBroken: the link is gone.
        """
        self._tell({"do": PipeOp.RESIZE, "rows": tty.rows, "cols": tty.cols}, b"")

    def end(self) -> None:
        """Close the command's standard input, or say that nothing more comes for the port.

        Raises:
            PipeBroken: the link is gone.
        """
        self._tell({"do": PipeOp.END}, b"")

    def close(self) -> None:
        """Kill the command with all it started, or close the connection.

        Raises:
            PipeBroken: the link is gone, and the command with it.
        """
        self._tell({"do": PipeOp.CLOSE}, b"")

    def take(self, frame: Frame) -> bool:
        """Take a frame from the guest; True when it was the last one.

        Raises:
            BadStreamFrame: the guest breaks the rules.
        """
        head = frame.head
        match head.get("do"):
            case PipeOp.DATA:
                self._arrived(frame.body, self._listener.on_data)
                return False
            case PipeOp.ERRORS if self._listener.on_errors is not None:
                self._arrived(frame.body, self._listener.on_errors)
                return False
            case PipeOp.CREDIT:
                self._may_write(head.get("n"))
                return False
            case PipeOp.END if self._listener.on_eof is not None:
                if self._has_eof:
                    raise BadStreamFrame("a pipe ended twice")
                self._has_eof = True
                self._listener.on_eof()
                return False
            case PipeOp.CLOSE:
                self.over(_end(head, frame.body, is_connection=self._listener.on_eof is not None))
                return True
        raise BadStreamFrame(f"a pipe frame that does {head.get('do')!r:.50}")

    def _arrived(self, data: bytes, on_data: Callable[[bytes], None]) -> None:
        with self._room:
            self._received += stream_cost(len(data))
            if self._received > STREAM_WINDOW:
                raise BadStreamFrame("more data than a pipe's window allows")
        if self._has_eof:
            raise BadStreamFrame("data of a pipe behind its end")
        on_data(data)

    def _may_write(self, more: object) -> None:
        with self._room:
            if type(more) is not int or not 0 < more <= STREAM_WINDOW - self._credit:
                raise BadStreamFrame("more credit for a pipe than was used")
            self._credit += more
            self._room.notify_all()
        if self._listener.on_credit is not None:
            self._listener.on_credit(more)

    def over(self, end: PipeEnd) -> None:
        """The command or connection, or the link to it, has ended."""
        with self._room:
            if self._ended is not None:
                return
            self._ended = end
            self._room.notify_all()
        self._listener.on_end(end)

    def _tell(self, head: dict[str, Any], body: bytes) -> None:
        try:
            self._send({"pipe_id": self.number, **head}, body)
        except OSError as error:
            raise PipeBroken("the link to the box is gone") from error


class Pipes:
    """The pipes of one link. Thread-safe."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._pipes: dict[int, Pipe] = {}
        self._last = 0
        self._is_closed = False

    def new(self, listener: Listener) -> Pipe:
        """A pipe with a number of its own, for what is about to be started."""
        with self._lock:
            self._last += 1
            pipe = self._pipes[self._last] = Pipe(self._last, self._send, listener)
            return pipe

    def forget(self, pipe: Pipe) -> None:
        """It was not started."""
        with self._lock:
            self._pipes.pop(pipe.number, None)

    def take(self, frame: Frame) -> None:
        """Take a frame from the guest.

        Raises:
            BadStreamFrame: the guest breaks the rules.
        """
        number = frame.head.get("pipe_id")
        with self._lock:
            pipe = self._pipes.get(number) if type(number) is int else None
            if type(number) is not int or not 0 < number <= self._last:
                raise BadStreamFrame("a frame for a pipe that was never opened")
        if pipe is not None and pipe.take(frame):
            self.forget(pipe)

    def close(self) -> None:
        """The link is gone, and every command with it."""
        with self._lock:
            pipes, self._pipes = list(self._pipes.values()), {}
        for pipe in pipes:
            pipe.over(PipeEnd("the link to the box is gone", ""))


def _end(head: dict[str, Any], said: bytes, *, is_connection: bool) -> PipeEnd:
    code, signal = head.get("exit_code"), head.get("signal")
    words = said[:PIPE_ERROR_BYTES].decode(errors="replace")
    if is_connection:
        broke = f"the connection broke: {str(head['error'])[:200]}" if "error" in head else "the connection was closed"
        return PipeEnd(broke, words)
    if "error" in head:
        return PipeEnd(f"it could not be started: {str(head['error'])[:200]}", words)
    if type(signal) is int and 0 < signal < 128:
        return PipeEnd(f"it was ended by signal {signal}", words, signal=signal)
    if type(code) is int and 0 <= code < 256:
        return PipeEnd(f"it ended with exit code {code}", words, exit_code=code)
    raise BadStreamFrame("a command that ended in no way")
