"""Asking the human at the terminal: approvals → **terminal**."""

import asyncio
import contextlib
import os
import termios
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol, TextIO

from coordinator.session.approvals import Decided
from worker.contract.approvals import ApprovalRequest

QUESTION = "  allow? [y] once  [a] always, {scope}  [n] no  [n TEXT] no, and tell the model TEXT: "
THIS_CALL = "this very call in this session"
COMMANDS = "these commands in this session"


class Display(Protocol):
    """What must leave the terminal alone while somebody is asked."""

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal alone inside the block."""


class TerminalApprover:
    """Asks on a terminal; the call itself was shown by the timeline, whole. No answer is no."""

    waits = True

    def __init__(self, display: Display, cancelled: asyncio.Event, answers: TextIO, questions: TextIO) -> None:
        self._display = display
        self._cancelled = cancelled
        self._answers = answers
        self._questions = questions
        self._typed = b""
        """What was typed behind the last line."""
        self._reading: asyncio.Future[bytes] | None = None
        """The one read that may be under way, also across questions."""

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Return the human's decision; a cancelled session or the end of the input is a no.

        Cancelled when the answer came from elsewhere or the deadline passed: says so, and forgets what was typed.
        """
        with self._display.paused():
            self._forget_typed()
            question = QUESTION.format(scope=THIS_CALL if request.lasting is None else COMMANDS)
            while True:
                try:
                    self._questions.write(question)
                    self._questions.flush()
                    line = await self._line()
                except (OSError, ValueError):
                    # The terminal is gone: whoever sat there cannot say yes.
                    line = None
                except asyncio.CancelledError:
                    with contextlib.suppress(OSError, ValueError):
                        self._questions.write("\n  no longer asked here\n")
                        self._questions.flush()
                    raise
                if line is None:
                    return Decided(False, by="nobody answered", note="the session was ended")
                decided = _decided(line.strip())
                if decided is not None:
                    return decided

    def _forget_typed(self) -> None:
        """Drop what was typed on the terminal before this question was seen: it cannot be its answer."""
        if not self._answers.isatty():
            return
        self._typed = b""
        with contextlib.suppress(OSError, termios.error):
            termios.tcflush(self._answers.fileno(), termios.TCIFLUSH)
        if self._reading is not None and self._reading.done():
            self._reading = None

    async def _line(self) -> str | None:
        """Return the next line, None at the input's end or when the session is cancelled.

        Raises:
            OSError: the input cannot be read.
        """
        while b"\n" not in self._typed:
            chunk = await self._chunk()
            if not chunk and (chunk is None or not self._typed):
                return None
            self._typed += chunk or b"\n"
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace")

    async def _chunk(self) -> bytes | None:
        """Return what is typed next; empty at the input's end, None when the session is cancelled."""
        # A read that an earlier question began goes on: two of them would take each other's lines.
        reading = self._reading = self._reading or self._read()
        stop: asyncio.Future[Any] = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if not reading.done():
            return None
        self._reading = None
        return reading.result()

    def _read(self) -> "asyncio.Future[bytes]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        number = self._answers.fileno()

        def hand_over(chunk: bytes, error: OSError | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(chunk)

        def read() -> None:
            chunk, error = b"", None
            try:
                chunk = os.read(number, 4096)
            except OSError as exc:
                error = exc
            # The session may be over, and its event loop closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(hand_over, chunk, error)

        # A daemon thread: a read that nobody answers must not keep the process from ending. On the descriptor, not on
        # the stream: its lock, held by a thread that reads, is fatal to the interpreter when it ends.
        threading.Thread(target=read, name="approval", daemon=True).start()
        return future


def _decided(answer: str) -> Decided | None:
    """Return what was typed as a decision; None if it is none of the choices."""
    word, _, note = answer.partition(" ")
    match word.lower():
        case "y" | "yes":
            return Decided(True, by="a person at the terminal")
        case "a" | "always":
            return Decided(True, by="a person at the terminal, for this session", is_lasting=True)
        case "n" | "no":
            return Decided(False, by="a person at the terminal", note=note or "a person said no")
    return None


def is_terminal(*streams: TextIO) -> bool:
    """Return whether all of these are a terminal."""
    return all(stream.isatty() for stream in streams)
