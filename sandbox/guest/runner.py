"""Runs commands for the server: request in, answer into the table of calls."""

from __future__ import annotations

import errno
import json
import marshal
import os
import signal
from collections.abc import Callable

from sandbox.guest.background import MAX_KNOWN, RING_BYTES, Backgrounds
from sandbox.guest.calls import Call, Calls
from sandbox.guest.commands import Command, Output, is_out_of_processes
from sandbox.guest.loop import Loop
from sandbox.guest.processes import MARKER_BASE, Kernel, kill_marked, marked_processes, signal_marked
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.scratch import Ring
from sandbox.guest.spawning import Ended, SpawnerLink
from sandbox.wire import (
    HOME,
    MAX_COMMAND_BYTES,
    MAX_KEEP_BYTES,
    MAX_STREAM_BYTES,
    WORKSPACE,
    Frame,
    RefusalCode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 0.1
"""A command for the background that cannot start, or ends within this time, is answered as what it came to."""
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/ash", "/bin/busybox")
# The text is an argument and is never changed; the trap reports the cwd on a descriptor of ours. Works in ash too.
WRAPPER = "trap '{ pwd >&9; } 2>/dev/null' EXIT; eval \"$1\""

_NONINTERACTIVE = {
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    # Sorting, messages and the rest are the same with it as with LANG, whose files cost a shell a tenth of its start.
    "LC_CTYPE": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    # `git status` and its like only look: they neither refresh the index nor run the hook for that.
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ASKPASS": "true",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PYTHONUNBUFFERED": "1",
}


def find_shell() -> str:
    """The shell of the image, bash if it has one; "" when there is none."""
    return next((path for path in SHELLS if os.access(path, os.X_OK)), "")


class Runner:
    """All commands of the box: those whose call waits, and through `backgrounds` the others."""

    def __init__(
        self,
        loop: Loop,
        spawner: SpawnerLink,
        calls: Calls,
        backgrounds: Backgrounds,
        emit: Callable[[Call, bytes], bool],
    ) -> None:
        self._loop = loop
        self._spawner = spawner
        self._calls = calls
        self._backgrounds = backgrounds
        self._emit = emit
        self._kernel = Kernel()
        self._running: dict[str, Command] = {}
        self._last_marker = MARKER_BASE
        self._idle_tasks: int | None = None
        self._env = dict(_NONINTERACTIVE, PATH=DEFAULT_PATH)
        self._packed_env = ("", b"")
        """The last one that was packed for a command without variables of its own, and for which directory."""
        self.shell = find_shell()
        self.is_frozen = False

    def set_environment(self, image: dict[str, str], wanted: dict[str, str]) -> None:
        """What commands see: the image's variables, ours over them, the wanted ones over all."""
        image = {name: value for name, value in image.items() if name != "LANG"}
        # Without SHELL a shell looks its user up, which costs another tenth.
        self._env = {"PATH": DEFAULT_PATH, **image, **_NONINTERACTIVE, "SHELL": self.shell_name, **wanted}
        self._packed_env = ("", b"")

    @property
    def shell_name(self) -> str:
        """What commands are told of the shell; a program of many names is told which to be."""
        return self.shell if self.shell and not self.shell.endswith("busybox") else "/bin/sh"

    def environment(self, cwd: str, wanted: dict[str, str]) -> bytes:
        """What a command sees that starts in this directory, packed for the spawner."""
        if wanted:
            return marshal.dumps({**self._env, "PWD": cwd, **wanted})
        if self._packed_env[0] != cwd:
            self._packed_env = cwd, marshal.dumps({**self._env, "PWD": cwd})
        return self._packed_env[1]

    def new_marker(self) -> int:
        """A marker for the processes of one more command."""
        self._last_marker += 1
        return self._last_marker

    def start(self, call: Call, frame: Frame) -> None:
        """Begin the command of a claimed call.

        Raises:
            Refusal: it cannot be run; nothing was started.
        """
        head = frame.head
        session = self._calls.session(call.mark.session)
        if self.is_frozen:
            raise Refusal(RefusalCode.FROZEN, "commands of this box stand still")
        cwd = os.path.join(session.cwd, head["cwd"]) if head["cwd"] else session.cwd
        argv, executables = self._argv(head["argv"], frame.body)
        env = self.environment(cwd, json_env(head["env"]))
        command = self._command(call, frame)
        command.oom_kills_before = self._kernel.oom_kills()
        command.refused_tasks_before = self._kernel.refused_tasks()
        self._spawn(command, (argv, executables, env, os.fsencode(cwd)))
        self._running[call.mark.key] = command
        if command.stays:
            command.arm(self._loop, START_S, lambda: self._finish(command))
        else:
            command.arm(self._loop, int(head["timeout_ms"]) / 1000, lambda: self._expire(command))

    def _command(self, call: Call, frame: Frame) -> Command:
        head = frame.head
        keep_bytes = min(max(0, int(head["keep_bytes"])), MAX_KEEP_BYTES)
        stays = head.get("background") is True
        if stays and self._backgrounds.is_full:
            raise Refusal(RefusalCode.LIMIT, f"{MAX_KNOWN} commands run in the background already")
        emit = (lambda data: self._emit(call, data)) if head["stream"] and not stays else None
        output = Output(self._loop, keep_bytes, emit, int(head.get("stream_bytes", MAX_STREAM_BYTES)))
        keeps_cwd = head["argv"] is None and not stays
        command = Command(call, self._calls.session(call.mark.session), self.new_marker(), output, keeps_cwd)
        command.stays = stays
        command.runs_shell = head["argv"] is None
        if stays:
            command.ring = Ring(RING_BYTES)
            output.divert(command.ring)
        command.text = frame.body if head["argv"] is None else b" ".join(os.fsencode(text) for text in head["argv"])
        return command

    def words_of(self, argv: list[str]) -> tuple[list[bytes], list[bytes]]:
        """The words of a command that no shell reads, and where its program may be.

        Raises:
            Refusal: they are none.
        """
        return self._argv(argv, b"")

    def _argv(self, argv: list[str] | None, body: bytes) -> tuple[list[bytes], list[bytes]]:
        if argv is None:
            if not self.shell:
                raise Refusal(RefusalCode.NO_SHELL, "the image has no shell")
            if len(body) > MAX_COMMAND_BYTES:
                raise Refusal(
                    RefusalCode.INVALID_PARAM,
                    f"the command has {len(body)} bytes, at most {MAX_COMMAND_BYTES} go: write a file and run that",
                )
            if b"\0" in body:
                raise Refusal(RefusalCode.INVALID_PARAM, "the command has a NUL byte")
            shell = self.shell.encode()
            # By its path, else bash looks itself up; what it says of itself begins with the short name.
            called = b"sh" if shell.endswith(b"busybox") else shell
            return [called, b"-c", WRAPPER.encode(), os.path.basename(called), body], [shell]
        packed = [os.fsencode(text) for text in argv]
        if not packed or any(b"\0" in text for text in packed):
            raise Refusal(RefusalCode.INVALID_PARAM, "argv is empty or has a NUL byte")
        if b"/" in packed[0]:
            return packed, [packed[0]]
        return packed, [os.path.join(os.fsencode(place), packed[0]) for place in self._env["PATH"].split(":")]

    def _spawn(self, command: Command, what: tuple[Any, ...]) -> None:
        pipes: list[int] = []
        try:
            for flags in (0, 0, os.O_NONBLOCK):
                pipes += os.pipe2(os.O_CLOEXEC | flags)
            self._spawner.spawn(
                (*what, command.marker), (pipes[1], pipes[3], pipes[5]), lambda ended: self._end(command, ended, what)
            )
        except OSError as error:
            for fd in pipes[::2]:
                os.close(fd)
            refusal = from_os_error(error, "cannot start the command")
            if error.errno == errno.EMSGSIZE:
                refusal = Refusal(RefusalCode.INVALID_PARAM, "command, arguments and environment are too long together")
            raise refusal from None
        finally:
            for fd in pipes[1::2]:
                os.close(fd)
        command.report_fd = pipes[4]
        command.output.attach(pipes[0], pipes[2])

    def _end(self, command: Command, ended: Ended, what: tuple[Any, ...]) -> None:
        """The command's own process ended, or could not be started."""
        if command.call.mark.key not in self._running:
            # Its call was answered already: it is in the background, or its end was given up.
            if command.ended is None:
                command.ended = ended
                command.take_cwd()
            return
        if ended.what:
            self._failed(command, ended, what)
            return
        command.ended = ended
        if command.is_ending:
            kill_marked(command.marker)
        command.output.drain()
        command.take_cwd()
        self._finish(command)

    def _failed(self, command: Command, ended: Ended, what: tuple[Any, ...]) -> None:
        command.output.close()
        os.close(command.report_fd)
        if is_out_of_processes(ended) and not command.killed_leftovers and self._backgrounds.kill_all():
            command.killed_leftovers = True
            try:
                self._spawn(command, what)
            except Refusal as again:
                self._refuse(command, again)
            return
        path = os.fsdecode(what[3] if ended.what == "cwd" else what[0][0])
        message = f"{'cannot go to the working directory' if ended.what == 'cwd' else 'cannot run'} {path}"
        if ended.what == "cwd" and command.session.cwd == path:
            # A workspace that a command shut can be opened again from elsewhere only.
            command.session.cwd = "/" if path == WORKSPACE else WORKSPACE
            message += f" (the session is now in {command.session.cwd})"
        refusal = from_os_error(OSError(ended.error, os.strerror(ended.error)), message)
        if ended.what == "exec" and command.runs_shell:
            refusal = Refusal(RefusalCode.NO_SHELL, f"the shell that was here is gone: {refusal.message}")
        self._refuse(command, refusal)

    def _refuse(self, command: Command, refusal: Refusal) -> None:
        command.disarm()
        self._running.pop(command.call.mark.key, None)
        self._calls.finish(command.call, refusal.answer())

    def _finish(self, command: Command) -> None:
        """Answer; what goes on running is a background command from now on."""
        command.disarm()
        self._running.pop(command.call.mark.key, None)
        left = self._left_running(command.marker)
        name = None
        if left or command.stays:
            name = self._backgrounds.add(command)
        else:
            command.output.close()
        self._calls.finish(command.call, command.answer(left, self._kernel, name))

    def _left_running(self, marker: int) -> list[int]:
        """Processes of the marker; looked for only when the kernel counts more than when the box was idle."""
        tasks = self._kernel.task_count()
        if tasks is not None and tasks == self._idle_tasks and not self._running and not self._backgrounds.has_living:
            return []
        found, own_tasks = marked_processes()
        self._backgrounds.settle(found)
        self._idle_tasks = own_tasks
        return found.get(marker, [])

    def forget_idle_count(self) -> None:
        """The number of our own processes changed (another relay)."""
        self._idle_tasks = None

    def _expire(self, command: Command) -> None:
        command.timed_out = True
        command.terminate(self._loop, self._giving_up(command))

    def _give_up(self, command: Command) -> None:
        """The kernel does not show the end of the process: answer without it."""
        command.output.drain()
        command.take_cwd()
        self._finish(command)

    def cancel(self, key: str) -> bool:
        """End a running command or what it left; True when there was something to end."""
        running = self._running.get(key)
        if running is not None:
            if self.is_frozen:
                # What stands still may run no further instruction: its workspace may be another box's by now.
                running.cancelled = True
                kill_marked(running.marker)
            elif not running.is_ending:
                running.cancelled = True
                running.terminate(self._loop, self._giving_up(running))
            return True
        return self._backgrounds.cancel(key)

    def freeze(self) -> None:
        """Stop every command; their time limits stand still."""
        signal_marked(None, signal.SIGSTOP)
        if not self.is_frozen:
            self.is_frozen = True
            for command in self._running.values():
                command.freeze()

    def thaw(self) -> None:
        """Let every command go on."""
        signal_marked(None, signal.SIGCONT)
        if self.is_frozen:
            self.is_frozen = False
            for command in self._running.values():
                if command.is_ending:
                    command.terminate(self._loop, self._giving_up(command))
                else:
                    command.thaw(self._loop)

    def _giving_up(self, command: Command) -> Callable[[], None]:
        return lambda: self._give_up(command)

    def pause_output(self) -> None:
        """The host is behind: let streaming commands wait."""
        for command in self._running.values():
            command.output.pause()

    def resume_output(self) -> None:
        """The host takes output again, or there is none."""
        for command in self._running.values():
            command.output.resume()

    def link_lost(self) -> None:
        """What was streamed may not have arrived; commands go on and their output is kept within its bounds."""
        self.forget_idle_count()
        for command in self._running.values():
            if command.output.streamed:
                command.output.complete = False
            command.output.resume()

    def tasks(self) -> int:
        """Processes and threads in the box; 0 when the kernel does not say."""
        return self._kernel.task_count() or 0


def json_env(value: Any) -> dict[str, str]:
    """The environment in a request.

    Raises:
        Refusal: it is not a map of text to text.
    """
    if not isinstance(value, dict) or not all(_is_variable(name, text) for name, text in value.items()):
        raise Refusal(RefusalCode.INVALID_PARAM, f"not an environment: {json.dumps(value)[:200]}")
    return value


def _is_variable(name: str, text: object) -> bool:
    return name != "" and "=" not in name and "\0" not in name and isinstance(text, str) and "\0" not in text
