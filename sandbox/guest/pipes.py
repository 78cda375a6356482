"""Commands whose standard input and output the host has: a server inside the box that somebody outside talks to."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from sandbox.guest.loop import Loop
from sandbox.guest.processes import kill_marked
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.runner import Runner, json_env
from sandbox.guest.spawning import Ended, SpawnerLink
from sandbox.guest.terminal import give_size, open_terminal
from sandbox.wire import (
    PIPE_ERROR_BYTES,
    PIPES_MAX,
    STREAM_CHUNK_BYTES,
    STREAM_FRAME_COST,
    STREAM_WINDOW,
    WORKSPACE,
    Frame,
    PipeOp,
    RefusalCode,
    stream_cost,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

EXIT_S = 2.0
"""A command that has closed its output exits of its own accord within that time, or is killed."""

KILL_AGAIN_S = 0.1
QUIET_S = 0.2


class Pipe:
    """One command and its three pipes, or both ends of its terminal; a descriptor of -1 is closed."""

    __slots__ = (
        "credit", "ended", "err", "has_terminal", "host_ended", "is_quiet", "marker", "number", "out", "outgoing",
        "owed", "said", "sends_errors", "stdin",
    )  # fmt: skip

    def __init__(self, number: int, marker: int, sends_errors: bool) -> None:
        self.number = number
        self.marker = marker
        self.sends_errors = sends_errors
        self.stdin = self.out = self.err = -1
        self.credit = STREAM_WINDOW
        """What may be sent to the host."""
        self.outgoing = bytearray()
        """What the command has not taken yet."""
        self.owed = 0
        """Cost of the frames received for which no credit was given back."""
        self.said = b""
        self.has_terminal = False
        self.is_quiet = False
        """A command on a terminal has ended a while ago: nothing to read is the end."""
        self.host_ended = False
        self.ended: Ended | None = None


class Pipes:
    """All pipes of the link; they end with it."""

    def __init__(
        self, loop: Loop, spawner: SpawnerLink, runner: Runner, send: Callable[[dict[str, Any], bytes], bool]
    ) -> None:
        self._loop = loop
        self._spawner = spawner
        self._runner = runner
        self._send = send
        self._pipes: dict[int, Pipe] = {}

    def open(self, frame: Frame) -> None:
        """Start a command with pipes, or on a terminal of its own.

        Raises:
            Refusal: it cannot be started; nothing was.
        """
        head = frame.head
        number = head["pipe_id"]
        if not isinstance(number, int) or number in self._pipes:
            raise Refusal(RefusalCode.INVALID_PARAM, "no new number for a pipe")
        if len(self._pipes) >= PIPES_MAX:
            raise Refusal(RefusalCode.LIMIT, f"{PIPES_MAX} commands with pipes run already")
        if self._runner.is_frozen:
            raise Refusal(RefusalCode.FROZEN, "commands of this box stand still")
        argv, executables = self._runner.words_of(head["argv"])
        env = self._runner.environment(WORKSPACE, json_env(head["env"]))
        pipe = Pipe(number, self._runner.new_marker(), head.get("errors") is True)
        pipe.has_terminal = head.get("tty") is not None
        self._spawn(pipe, (argv, executables, env, os.fsencode(WORKSPACE), pipe.marker), head.get("tty"))
        self._pipes[number] = pipe
        self._listen(pipe)

    def frame(self, frame: Frame) -> None:
        """Take what the host says of a pipe."""
        head = frame.head
        pipe = self._pipes.get(head["pipe_id"])
        if pipe is None:
            return
        match head["do"]:
            case PipeOp.DATA:
                pipe.owed += stream_cost(len(frame.body))
                if pipe.stdin >= 0:
                    pipe.outgoing += frame.body
                self._write(pipe)
            case PipeOp.CREDIT:
                pipe.credit += head["n"]
                self._listen(pipe)
            case PipeOp.RESIZE:
                if pipe.out >= 0:
                    give_size(pipe.out, head["rows"], head["cols"])
            case PipeOp.END:
                pipe.host_ended = True
                self._write(pipe)
            case PipeOp.CLOSE:
                self._kill(pipe)

    def link_lost(self) -> None:
        """End every command: nobody is left who could talk to it."""
        for pipe in list(self._pipes.values()):
            self._drop(pipe)
            self._kill(pipe)

    def _has(self, pipe: Pipe) -> bool:
        """Whether it is the present link's: each counts its pipes anew, and some of the last may still be ending."""
        return self._pipes.get(pipe.number) is pipe

    def _kill(self, pipe: Pipe) -> None:
        """End a command for certain: the spawner may not have come to starting it yet."""
        kill_marked(pipe.marker)
        if pipe.ended is None:
            self._loop.after(KILL_AGAIN_S, lambda: self._kill(pipe))

    def _spawn(self, pipe: Pipe, what: tuple[Any, ...], tty: dict[str, int] | None) -> None:
        fds: list[int] = []
        try:
            ours, theirs = _three_pipes(fds) if tty is None else _terminal(fds, tty)
            self._spawner.spawn(what, theirs, lambda ended: self._end(pipe, ended))
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, OSError):
                raise from_os_error(error, "cannot start the command") from None
            raise
        for fd in set(theirs):
            os.close(fd)
        pipe.stdin, pipe.out, pipe.err = ours
        for fd in ours:
            if fd >= 0:
                os.set_blocking(fd, False)

    def _listen(self, pipe: Pipe) -> None:
        """Wait for what the command says, from the beginning or since there was no credit."""
        if pipe.out >= 0:
            self._loop.unwatch(pipe.out)
            self._loop.watch(pipe.out, lambda _: self._read(pipe))
        if pipe.err >= 0:
            self._loop.unwatch(pipe.err)
            self._loop.watch(pipe.err, lambda _: self._read_errors(pipe))

    def _read(self, pipe: Pipe) -> None:
        data = self._within_credit(pipe, pipe.out)
        if data is None and pipe.is_quiet and pipe.credit > STREAM_FRAME_COST:
            data = b""
        if data is None:
            return
        if not data:
            self._close_fd(pipe, "out")
            if not pipe.sends_errors:
                # A server that says no more is of no more use, nor is what it started; most are just about to exit.
                self._loop.after(EXIT_S, lambda: self._end_silent(pipe))
            self._settle(pipe)
            return
        pipe.credit -= stream_cost(len(data))
        self._send({"pipe_id": pipe.number, "do": PipeOp.DATA}, data)

    def _within_credit(self, pipe: Pipe, fd: int) -> bytes | None:
        """What may be sent of a descriptor now; None for nothing yet."""
        room = min(STREAM_CHUNK_BYTES, pipe.credit - STREAM_FRAME_COST)
        if room <= 0:
            # Not even for a hang-up, which would be told again and again.
            self._loop.unwatch(fd)
            return None
        return self._taken(fd, room)

    def _read_errors(self, pipe: Pipe) -> None:
        sends = pipe.sends_errors
        data = self._within_credit(pipe, pipe.err) if sends else self._taken(pipe.err, STREAM_CHUNK_BYTES)
        if data is None:
            return
        if not data:
            self._close_fd(pipe, "err")
            self._settle(pipe)
        elif sends:
            pipe.credit -= stream_cost(len(data))
            self._send({"pipe_id": pipe.number, "do": PipeOp.ERRORS}, data)
        else:
            pipe.said = (pipe.said + data)[-PIPE_ERROR_BYTES:]

    def _taken(self, fd: int, size: int) -> bytes | None:
        """What a descriptor has now; None for nothing yet."""
        try:
            return os.read(fd, size)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _write(self, pipe: Pipe) -> None:
        if pipe.stdin < 0:
            pipe.outgoing.clear()
        elif pipe.outgoing:
            try:
                sent = os.write(pipe.stdin, pipe.outgoing)
            except BlockingIOError:
                sent = 0
            except OSError:
                # It reads no more; that it ended is told by its end.
                self._close_fd(pipe, "stdin")
                sent = len(pipe.outgoing)
            del pipe.outgoing[:sent]
        due = pipe.owed - len(pipe.outgoing)
        if due >= STREAM_WINDOW // 4:
            pipe.owed -= due
            self._send({"pipe_id": pipe.number, "do": PipeOp.CREDIT, "n": due}, b"")
        if pipe.stdin < 0:
            return
        self._loop.unwatch(pipe.stdin)
        if pipe.outgoing:
            self._loop.watch(pipe.stdin, lambda _: self._write(pipe), select.EPOLLOUT)
        elif pipe.host_ended:
            self._close_fd(pipe, "stdin")

    def _end(self, pipe: Pipe, ended: Ended) -> None:
        """The command's own process ended, or could not be started."""
        pipe.ended = ended
        if self._has(pipe):
            kill_marked(pipe.marker)
            self._settle(pipe)
            if pipe.has_terminal:
                self._loop.after(QUIET_S, lambda: self._end_terminal(pipe))

    def _end_terminal(self, pipe: Pipe) -> None:
        """Take what is left on a terminal, whose last user is gone: not every kernel says so."""
        if self._has(pipe) and pipe.out >= 0:
            pipe.is_quiet = True
            self._read(pipe)
            self._loop.after(QUIET_S, lambda: self._end_terminal(pipe))

    def _end_silent(self, pipe: Pipe) -> None:
        """Kill a command that closed its output and runs on."""
        if self._has(pipe) and pipe.ended is None:
            kill_marked(pipe.marker)

    def _settle(self, pipe: Pipe) -> None:
        """Tell the host of the end once all output is on its way."""
        if pipe.ended is None or pipe.out >= 0 or not self._has(pipe):
            return
        if pipe.err >= 0:
            if pipe.sends_errors:
                # All of it, too; its end settles this again.
                return
            pipe.said = (pipe.said + (self._taken(pipe.err, STREAM_CHUNK_BYTES) or b""))[-PIPE_ERROR_BYTES:]
        status, head = pipe.ended.status, {"pipe_id": pipe.number, "do": PipeOp.CLOSE}
        if pipe.ended.what:
            head["error"] = os.strerror(pipe.ended.error)
        elif os.WIFEXITED(status):
            head["exit_code"] = os.WEXITSTATUS(status)
        else:
            head["signal"] = os.WTERMSIG(status)
        self._send(head, pipe.said)
        self._drop(pipe)

    def _drop(self, pipe: Pipe) -> None:
        self._pipes.pop(pipe.number, None)
        for name in ("stdin", "out", "err"):
            self._close_fd(pipe, name)

    def _close_fd(self, pipe: Pipe, name: str) -> None:
        fd = getattr(pipe, name)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)
            setattr(pipe, name, -1)


def _three_pipes(fds: list[int]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Our ends, and what the spawner gets; all that was opened is in `fds` at any time."""
    for _ in range(3):
        fds += os.pipe2(os.O_CLOEXEC)
    return (fds[1], fds[2], fds[4]), (fds[3], fds[5], fds[5], fds[0])


def _terminal(fds: list[int], tty: dict[str, int]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The same with a terminal: an end of ours for each direction, and no standard error of its own."""
    fds += open_terminal()
    give_size(fds[0], tty["rows"], tty["cols"])
    fds.append(os.dup(fds[0]))
    return (fds[2], fds[0], -1), (fds[1], fds[1], fds[1], fds[1])
