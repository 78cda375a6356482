"""One channel: what a terminal says goes into its box, what comes from there goes back: doors → **channel** → pipes.

Two threads. One reads the terminal's stream and acts; the other writes down what the link's reader heard, which must
not wait for Redis. What waits in between is bounded by the windows of the pipes.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import redis

from sandbox.box import Box
from sandbox.errors import BoxLost, GuestRefused
from sandbox.guest_folder import command_line
from sandbox.pipes import Listener, Pipe, PipeBroken, PipeEnd, Tty
from worker.contract import keys
from worker.contract.channels import (
    BEAT_S,
    BadFrame,
    ChannelFrame,
    ChannelOrder,
    Command,
    Connection,
    Do,
    PackTree,
    Size,
    UnpackTree,
    Wanted,
    read_frame,
)

log = logging.getLogger(__name__)

BLOCK_MS = 1_000
ENTRIES = 64
PIPES_MAX = 64
"""Of one channel at once."""

_Said = tuple[ChannelFrame, bytes]


class Channel:
    """Serves one terminal until that leaves, is silent, or the box is gone."""

    def __init__(
        self,
        client: redis.Redis,
        order: ChannelOrder,
        box: Box,
        box_of: Callable[[str], Box | None],
        on_end: Callable[["Channel"], None],
        silent_s: float,
    ) -> None:
        self.name = order.channel
        self.session = order.session
        self.over = ""
        """Why it ended; "" while it has not."""
        self._redis = client
        self._box = box
        self._box_of = box_of
        self._on_end = on_end
        self._silent_s = silent_s
        self._up, self._down = keys.channel_up(order.channel), keys.channel_down(order.channel)
        self._pipes: dict[int, Pipe] = {}
        self._last_number = 0
        self._said: SimpleQueue[_Said | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._serve, name=f"channel-{self.name[:8]}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"channel-{self.name[:8]}-down", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._writer.start()
        self._reader.start()

    def stop(self, words: str) -> None:
        """Have it end soon, for this reason."""
        self.over = self.over or words

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._reader.join(timeout_s)

    def _serve(self) -> None:
        try:
            with self._box.in_use():
                self._read()
        except (redis.RedisError, BadFrame) as exc:
            self.stop(f"the channel broke: {exc}")
        finally:
            for pipe in list(self._pipes.values()):
                _close(pipe)
            self._tell(Do.OVER, words=self.over)
            self._said.put(None)
            self._writer.join()
            self._on_end(self)

    def _read(self) -> None:
        """Act on what the terminal says, until the channel is over."""
        last, heard_at = b"0", time.monotonic()
        while not self.over:
            found: Any = self._redis.xread({self._up: last}, count=ENTRIES, block=BLOCK_MS)
            entries = found[0][1] if found else []
            for _, fields in entries:
                self._act(*read_frame(fields))
            if entries:
                last, heard_at = entries[-1][0], time.monotonic()
                self._redis.xtrim(self._up, minid=last, approximate=False)
            elif last == b"0":
                # Whoever asks says what for before.
                self.stop("the terminal had left")
            elif time.monotonic() - heard_at > self._silent_s:
                self.stop("the terminal is gone")
            if self._box_of(self.session) is not self._box or not self._box.is_alive():
                self.stop("the box has ended")

    def _act(self, frame: ChannelFrame, body: bytes) -> None:
        if frame.do is Do.OVER:
            self.stop("the terminal left")
        elif frame.do is Do.OPEN:
            self._open(frame)
        elif frame.do is not Do.BEAT and (pipe := self._pipes.get(frame.pipe)) is not None:
            try:
                _pass_on(pipe, frame, body)
            except PipeBroken as exc:
                log.info("a terminal's pipe is broken", extra={"session_id": self.session, "error": str(exc)})
                _close(pipe)

    def _open(self, frame: ChannelFrame) -> None:
        number = frame.pipe
        if frame.wanted is None or number <= self._last_number:
            raise BadFrame("a pipe without a number of its own")
        self._last_number = number
        if len(self._pipes) >= PIPES_MAX:
            self._tell(Do.CLOSE, number, words=f"{PIPES_MAX} are open already")
            return
        try:
            pipe = self._pipes[number] = self._started(number, frame.wanted)
        except GuestRefused as exc:
            self._tell(Do.CLOSE, number, words=exc.message)
        except (BoxLost, PipeBroken) as exc:
            self._tell(Do.CLOSE, number, words=str(exc))
        else:
            self._tell(Do.OPENED, number)
            if pipe.has_ended:
                # It may have ended before it stood here.
                self._pipes.pop(number, None)

    def _started(self, number: int, wanted: Wanted) -> Pipe:
        match wanted:
            case Connection(port=port):
                heard = replace(self._listener(number), on_eof=lambda: self._tell(Do.END, number))
                return self._box.connect(port, heard)
            case PackTree(path=path):
                return self._piped(number, command_line("tree", "pack", path))
            case UnpackTree(path=path):
                return self._piped(number, command_line("tree", "unpack", path))
            case Command(argv=argv, size=Size() as size, term=term):
                return self._box.open_pipe(
                    argv or self._shell(), {"TERM": term}, self._listener(number), tty=_tty(size)
                )
            case Command(argv=argv):
                return self._piped(number, argv or self._shell())

    def _piped(self, number: int, argv: Sequence[str]) -> Pipe:
        heard = replace(self._listener(number), on_errors=lambda data: self._tell(Do.ERRORS, number, data))
        return self._box.open_pipe(argv, {}, heard)

    def _shell(self) -> tuple[str, ...]:
        shell = self._box.info.shell
        if not shell:
            raise PipeBroken("the image has no shell; say which program to start")
        return (shell, "sh") if shell.endswith("busybox") else (shell,)

    def _listener(self, number: int) -> Listener:
        return Listener(
            on_data=lambda data: self._tell(Do.DATA, number, data),
            on_end=lambda end: self._ended(number, end),
            on_credit=lambda more: self._tell(Do.CREDIT, number, n=more),
        )

    def _ended(self, number: int, end: PipeEnd) -> None:
        self._pipes.pop(number, None)
        self._tell(Do.CLOSE, number, words=end.words, exit_code=end.exit_code, signal=end.signal)

    def _tell(self, do: Do, number: int = 0, body: bytes = b"", **more: Any) -> None:
        self._said.put((ChannelFrame(do=do, pipe=number, **more), body))

    def _write(self) -> None:
        """Write down what is said, and that the node is there, until the channel is over."""
        has_ended = False
        while not has_ended:
            said: list[_Said | None] = []
            try:
                said.append(self._said.get(timeout=BEAT_S))
                while len(said) < ENTRIES:
                    said.append(self._said.get_nowait())
            except Empty:
                said = said or [(ChannelFrame(do=Do.BEAT), b"")]
            has_ended = said[-1] is None
            try:
                with self._redis.pipeline(transaction=False) as pipe:
                    for one in said:
                        if one is not None:
                            pipe.xadd(self._down, one[0].fields(one[1]))  # type: ignore[arg-type]
                    pipe.expire(self._down, keys.CHANNEL_TTL_S)
                    pipe.execute()
            except redis.RedisError as exc:
                # What was lost on the way leaves a gap: nothing behind it may be shown.
                self.stop(f"the channel broke: {exc}")


def _pass_on(pipe: Pipe, frame: ChannelFrame, body: bytes) -> None:
    match frame.do:
        case Do.DATA:
            # The terminal keeps within the box's window, so there is room.
            pipe.write(body, 0.0)
        case Do.CREDIT:
            pipe.took(frame.n)
        case Do.RESIZE if frame.size is not None:
            pipe.resize(_tty(frame.size))
        case Do.END:
            pipe.end()
        case Do.CLOSE:
            pipe.close()
        case _:
            raise BadFrame(f"a frame that does {frame.do}")


def _tty(size: Size) -> Tty:
    return Tty(size.rows, size.cols)


def _close(pipe: Pipe) -> None:
    try:
        pipe.close()
    except PipeBroken as exc:
        log.debug("the pipe went with its link", extra={"error": str(exc)})
