"""Between the person at a terminal and a command in a box: shell → **shelling** → channel."""

import asyncio
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack

from coordinator.cluster.channel import Channel, FarPipe
from coordinator.commands.acting import keep_action
from coordinator.commands.raw_terminal import Escapes, raw, size_of
from coordinator.commands.reaching import find_box, reach
from coordinator.errors import ChannelOver
from coordinator.settings import Settings
from coordinator.visible import visible_line
from worker.contract.channels import CHUNK_BYTES, TERM_PATTERN, ChannelFrame, Command, Do

STDIN, STDOUT, STDERR = 0, 1, 2
LOST, NOT_STARTED, BY_SIGNAL = 255, 127, 128
NOT_STARTED_WORDS = "it could not be started"
TERM = "xterm"


class Sitting:
    """One command in a box, with this process's terminal or standard streams.

    Args:
        settings: Of the command line.
        session: Whose box it is.
        argv: What runs there; empty is a shell.
        has_tty: On a terminal of its own; ours is raw meanwhile.
    """

    def __init__(self, settings: Settings, session: str, argv: tuple[str, ...], *, has_tty: bool) -> None:
        self._settings = settings
        self._session = session
        self._argv = argv
        self._has_tty = has_tty
        self._escapes = Escapes()
        self._stopped_by: int | None = None

    async def run(self) -> int:
        """Return the exit code once it has ended.

        Raises:
            ConfigError, NoBox: the box cannot be reached.
            TranscriptError: the audit log takes no line; nothing was done.
        """
        words = shlex.join(self._argv) or "a shell"
        async with find_box(self._settings, self._session) as found:
            code, has_begun = LOST, False
            try:
                async with reach(self._settings, found, self._session, "shell", words) as channel:
                    has_begun = True
                    code = await self._sit(channel)
            except ChannelOver as exc:
                self._say(str(exc))
            finally:
                if has_begun:
                    detail = f"exit code {code}"
                    keep_action(self._settings.state_dir, "shell_end", session=self._session, detail=detail)
        return code

    async def _sit(self, channel: Channel) -> int:
        size = size_of(STDOUT) if self._has_tty else None
        term = os.environ.get("TERM", "")
        term = term if re.fullmatch(TERM_PATTERN, term) else TERM
        pipe = await channel.open(Command(argv=self._argv, size=size, term=term))
        with ExitStack() as stack:
            self._take_signals(pipe, stack)
            if self._has_tty:
                stack.enter_context(raw(STDIN))
            loop = asyncio.get_running_loop()
            threading.Thread(target=_pump, args=(loop, lambda typed: self._typed(pipe, typed)), daemon=True).start()
            last = await self._shown(pipe)
        return self._code_of(last)

    def _take_signals(self, pipe: FarPipe, stack: ExitStack) -> None:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def start(work: Awaitable[None]) -> None:
            task = asyncio.ensure_future(_quietly(work))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def stop(number: int) -> None:
            self._stopped_by = number
            start(pipe.close())

        numbers = [signal.SIGTERM, signal.SIGHUP]
        if self._has_tty:
            loop.add_signal_handler(signal.SIGWINCH, lambda: start(pipe.resize(size_of(STDOUT))))
        else:
            numbers.append(signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, stop, number)
        for number in (*numbers, signal.SIGWINCH):
            stack.callback(loop.remove_signal_handler, number)

    async def _typed(self, pipe: FarPipe, typed: bytes) -> bool:
        """Pass on what came of the person or the pipe; return whether more is wanted."""
        if not self._has_tty:
            await (pipe.write(typed) if typed else pipe.end())
            return True
        passed, leaves = self._escapes.take(typed)
        await pipe.write(passed)
        if leaves or not typed:
            self._stopped_by = signal.SIGHUP
            await pipe.close()
            return False
        return True

    async def _shown(self, pipe: FarPipe) -> ChannelFrame:
        """Show what the command says, and return how it ended."""
        last = ChannelFrame(do=Do.CLOSE)
        async for frame, body in pipe.frames():
            last = frame
            if body:
                try:
                    # In a thread: who reads our output slowly must not make us look gone to the node.
                    await asyncio.to_thread(_write, STDERR if frame.do is Do.ERRORS else STDOUT, body)
                except OSError:
                    self._stopped_by = signal.SIGPIPE
                    await pipe.close()
        return last

    def _code_of(self, last: ChannelFrame) -> int:
        if self._stopped_by is not None:
            return BY_SIGNAL + self._stopped_by
        if last.exit_code is not None:
            return last.exit_code
        if last.signal is not None:
            return BY_SIGNAL + last.signal
        self._say(last.words)
        return NOT_STARTED if last.words.startswith(NOT_STARTED_WORDS) else LOST

    def _say(self, words: str) -> None:
        print(f"sandhog: {self._session}: {visible_line(words, 500)}", file=sys.stderr)


def _pump(loop: asyncio.AbstractEventLoop, give: Callable[[bytes], Awaitable[bool]]) -> None:
    """Read standard input in a thread of its own, and no faster than it is taken."""

    async def given(data: bytes) -> bool:
        try:
            return await give(data)
        except ChannelOver:
            return False

    data = b"begun"
    while data:
        try:
            data = os.read(STDIN, CHUNK_BYTES)
        except OSError:
            data = b""
        if loop.is_closed():
            return
        try:
            if not asyncio.run_coroutine_threadsafe(given(data), loop).result():
                return
        except (CancelledError, RuntimeError):
            # The command has ended meanwhile.
            return


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except ChannelOver:
        # Its end is told by the pipe.
        return
