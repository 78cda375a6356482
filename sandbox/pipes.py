"""The host's end of commands with pipes: what is written goes to a command in the box, what it prints comes back.

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
    """How a command with pipes ended."""

    words: str
    """For people."""
    said: str
    """The end of what it said on standard error."""


class Pipe:
    """One command. `write`, `end` and `close` from any thread; the callbacks come in the link's reader thread."""

    def __init__(
        self, number: int, send: Send, on_data: Callable[[bytes], None], on_end: Callable[[PipeEnd], None]
    ) -> None:
        self.number = number
        self._send = send
        self._on_data = on_data
        self._on_end = on_end
        self._room = threading.Condition()
        self._credit = STREAM_WINDOW
        self._received = 0
        """Cost of the frames that came and for which no credit was given back."""
        self._ended: PipeEnd | None = None

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send bytes to the command's standard input; blocks while it does not read.

        Raises:
            PipeBroken: it has ended, or did not read for that long.
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

    def end(self) -> None:
        """Close the command's standard input.

        Raises:
            PipeBroken: the link is gone.
        """
        self._tell({"do": PipeOp.END}, b"")

    def close(self) -> None:
        """Kill the command with all it started.

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
                with self._room:
                    self._received += stream_cost(len(frame.body))
                    if self._received > STREAM_WINDOW:
                        raise BadStreamFrame("more data than a pipe's window allows")
                self._on_data(frame.body)
                return False
            case PipeOp.CREDIT:
                more = head.get("n")
                with self._room:
                    if type(more) is not int or not 0 < more <= STREAM_WINDOW - self._credit:
                        raise BadStreamFrame("more credit for a pipe than was used")
                    self._credit += more
                    self._room.notify_all()
                return False
            case PipeOp.CLOSE:
                self.over(PipeEnd(_words(head), frame.body[:PIPE_ERROR_BYTES].decode(errors="replace")))
                return True
        raise BadStreamFrame(f"a pipe frame that does {head.get('do')!r:.50}")

    def over(self, end: PipeEnd) -> None:
        """The command, or the link to it, has ended."""
        with self._room:
            if self._ended is not None:
                return
            self._ended = end
            self._room.notify_all()
        self._on_end(end)

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

    def new(self, on_data: Callable[[bytes], None], on_end: Callable[[PipeEnd], None]) -> Pipe:
        """A pipe with a number of its own, for a command that is about to be started."""
        with self._lock:
            self._last += 1
            pipe = self._pipes[self._last] = Pipe(self._last, self._send, on_data, on_end)
            return pipe

    def forget(self, pipe: Pipe) -> None:
        """Its command was not started."""
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


def _words(head: dict[str, Any]) -> str:
    if "error" in head:
        return f"it could not be started: {str(head['error'])[:200]}"
    if type(head.get("signal")) is int:
        return f"it was ended by signal {head['signal']}"
    return f"it ended with exit code {head.get('exit_code')!r:.10}"
