"""Commands: started, listened to, ended with their whole tree."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable

from sandbox.guest.calls import Call, Session
from sandbox.guest.capture import STREAM_NAMES, Capture
from sandbox.guest.loop import Loop, Timer
from sandbox.guest.processes import Kernel, full_places, kill_marked, signal_marked
from sandbox.guest.scratch import Ring
from sandbox.guest.spawning import Ended
from sandbox.wire import OUT_CHUNK_BYTES, STREAM_THRESHOLD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    from sandbox.guest.calls import Answer

READ_BYTES = OUT_CHUNK_BYTES
DRAIN_BYTES = 1024 * 1024
"""A pipe holds at most this much; a drain beyond it would follow a writer that goes on."""
GRACE_S = 0.5
GIVE_UP_S = 5.0
KILL_AGAIN_S = 0.1


class Output:
    """The two pipes of a command: what is kept of them, what is streamed to the host, what goes into a ring."""

    def __init__(
        self, loop: Loop, keep_bytes: int, emit: Callable[[bytes], bool] | None = None, stream_bytes: int = 0
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._stream_room = stream_bytes
        self.captures = (Capture(keep_bytes), Capture(keep_bytes))
        self._fds: dict[int, Capture] = {}
        self._early: list[bytes] | None = [] if emit else None
        self._early_bytes = 0
        self._discarding = False
        self._paused = False
        self._ring: Ring | None = None
        self.streamed = False
        self.stream_cut = False
        self.complete = True

    def attach(self, out: int, err: int) -> None:
        """Start listening to the read ends."""
        for fd, capture in zip((out, err), self.captures, strict=True):
            self._fds[fd] = capture
            self._loop.watch(fd, self._reader(fd))

    @property
    def is_open(self) -> bool:
        """True while some process may still write."""
        return bool(self._fds)

    def pause(self) -> None:
        """Stop reading: the host is behind."""
        if self.streamed and not self._discarding and not self._paused:
            self._paused = True
            for fd in self._fds:
                self._loop.change(fd, 0)

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            for fd in self._fds:
                self._loop.change(fd, select.EPOLLIN)

    def divert(self, ring: Ring) -> None:
        """From now on put what is printed into the ring."""
        self._ring = ring

    def drain(self) -> None:
        """Take what is in the pipes now and keep no more; a later writer writes into the ring or into nothing."""
        for fd in list(self._fds):
            os.set_blocking(fd, False)
            taken = 0
            while fd in self._fds and taken < DRAIN_BYTES:
                size = self._read(fd)
                if size == 0:
                    break
                taken += size
        self.resume()
        self._discarding = True

    def close(self) -> None:
        """Stop listening altogether."""
        for fd in list(self._fds):
            self._end(fd)

    def _reader(self, fd: int) -> Callable[[int], None]:
        def read(_: int) -> None:
            self._read(fd)

        return read

    def _read(self, fd: int) -> int:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._end(fd)
        elif self._ring is not None:
            self._ring.add(data)
        elif not self._discarding:
            self._fds[fd].add(data)
            if self._emit is not None:
                self._stream(data)
        return len(data)

    def _end(self, fd: int) -> None:
        self._loop.forget(fd)
        os.close(fd)
        del self._fds[fd]

    def _stream(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
            self._early_bytes += len(data)
            if self._early_bytes <= STREAM_THRESHOLD_BYTES:
                return
            chunks, self._early = self._early, None
            self.streamed = True
        else:
            chunks = [data]
        assert self._emit is not None
        for chunk in chunks:
            if len(chunk) > self._stream_room:
                self.stream_cut = True
                chunk = chunk[: self._stream_room]
            self._stream_room -= len(chunk)
            if chunk and not self._emit(chunk):
                self.complete = False


class Command:
    """One running command and, after its end, what it left in the background."""

    def __init__(self, call: Call, session: Session, marker: int, output: Output, keeps_cwd: bool) -> None:
        self.call = call
        self.session = session
        self.marker = marker
        self.output = output
        self.keeps_cwd = keeps_cwd
        self.started = time.monotonic()
        self.report_fd = -1
        self.oom_kills_before = 0
        self.refused_tasks_before = 0
        self.timed_out = False
        self.cancelled = False
        self.killed_leftovers = False
        self.stays = False
        """It is to run in the background: its call does not wait for its end."""
        self.text = b""
        self.runs_shell = False
        self.ring: Ring | None = None
        self.ended: Ended | None = None
        self.timer: Timer | None = None
        self._frozen: tuple[float, Callable[[], None]] | None = None
        self._kill_until = 0.0

    def arm(self, loop: Loop, delay_s: float, callback: Callable[[], None]) -> None:
        """Replace the command's timer."""
        self.disarm()
        self.timer = loop.after(delay_s, callback)

    def disarm(self) -> None:
        """No timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def freeze(self) -> None:
        """Let the time limit stand still."""
        if self.timer is not None and self.timer.callback is not None:
            self._frozen = (max(0.0, self.timer.due - time.monotonic()), self.timer.callback)
        self.disarm()

    def thaw(self, loop: Loop) -> None:
        """Let the time limit go on."""
        if self._frozen is not None:
            self.arm(loop, *self._frozen)
            self._frozen = None

    def terminate(self, loop: Loop, give_up: Callable[[], None]) -> None:
        """SIGTERM to the whole tree, SIGKILL after a grace time; `give_up` when even that is not seen to work."""
        signal_marked(self.marker, signal.SIGTERM)
        signal_marked(self.marker, signal.SIGCONT)
        self._kill_until = time.monotonic() + GRACE_S + GIVE_UP_S
        self.arm(loop, GRACE_S, lambda: self._kill(loop, give_up))

    @property
    def is_ending(self) -> bool:
        """True after `terminate`."""
        return self._kill_until > 0

    def _kill(self, loop: Loop, give_up: Callable[[], None]) -> None:
        kill_marked(self.marker)
        if time.monotonic() > self._kill_until:
            give_up()
        else:
            self.arm(loop, KILL_AGAIN_S, lambda: self._kill(loop, give_up))

    def take_cwd(self) -> None:
        """Read the report of the shell, once, and set the session's cwd by it."""
        if self.report_fd < 0:
            return
        try:
            text = os.read(self.report_fd, 8192)
        except OSError:
            text = b""
        os.close(self.report_fd)
        self.report_fd = -1
        path = text[:-1] if text.endswith(b"\n") else b""
        if not self.keeps_cwd or not path.startswith(b"/") or len(path) > 4096:
            return
        cwd = os.fsdecode(path)
        if cwd != self.session.cwd and os.path.isdir(path):
            self.session.cwd = cwd

    def end(self) -> dict[str, int | None]:
        """Exit code and signal of the command's own process; neither while its end was not seen."""
        status = self.ended.status if self.ended is not None and not self.ended.what else None
        return {
            "exit_code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        }

    def answer(self, left_running: list[int], kernel: Kernel, background_id: str | None) -> Answer:
        """What the host hears of it."""
        end = self.end()
        head: dict[str, Any] = {
            **end,
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
            "oom_kills": kernel.oom_kills() - self.oom_kills_before,
            "refused_tasks": kernel.refused_tasks() - self.refused_tasks_before,
            "full": full_places() if end["exit_code"] != 0 else [],
            "duration_ms": (time.monotonic() - self.started) * 1000,
            "cwd": self.session.cwd,
            "left_running": left_running[:100],
            "background_id": background_id,
            "killed_leftovers": self.killed_leftovers,
            "streamed": self.output.streamed,
            "stream_cut": self.output.stream_cut,
            "spill_complete": self.output.complete,
        }
        body = b""
        for name, capture in zip(STREAM_NAMES, self.output.captures, strict=True):
            first, last = capture.parts()
            head[name] = capture.summary(first, last)
            body += first + last
        return head, body


def is_out_of_processes(ended: Ended) -> bool:
    """True when the process table or the memory for a new process is full."""
    return ended.what == "fork" and ended.error in (errno.EAGAIN, errno.ENOMEM)
