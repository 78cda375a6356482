"""Asking the human at the terminal: approvals → **terminal**."""

import asyncio
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol, TextIO

from coordinator.approvals import Decided
from coordinator.plan import PlannedCall

QUESTION = (
    "  allow? [y] once  [a] always this very call in this session  [n] no  [n TEXT] no, and tell the model TEXT: "
)


class Display(Protocol):
    """What must leave the terminal alone while somebody is asked."""

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal alone inside the block."""


class TerminalApprover:
    """Asks on a terminal; the call itself was shown by the timeline, whole. No answer is no."""

    def __init__(self, display: Display, cancelled: asyncio.Event, answers: TextIO, questions: TextIO) -> None:
        self._display = display
        self._cancelled = cancelled
        self._answers = answers
        self._questions = questions

    async def ask(self, call: PlannedCall, reason: str) -> Decided:
        """Return the human's decision; a cancelled session or the end of the input is a no."""
        with self._display.paused():
            while True:
                self._questions.write(QUESTION)
                self._questions.flush()
                line = await self._line()
                if line is None:
                    return Decided(False, by="nobody answered", note="the session was ended")
                decided = _decided(line.strip())
                if decided is not None:
                    return decided

    async def _line(self) -> str | None:
        """Return the next line, None at the input's end or when the session is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def read() -> None:
            line = self._answers.readline()
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(line))

        # A daemon thread: a read that nobody answers must not keep the process from ending.
        threading.Thread(target=read, name="approval", daemon=True).start()
        stop: asyncio.Future[Any] = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait({future, stop}, return_when=asyncio.FIRST_COMPLETED)
            return (future.result() or None) if future.done() else None
        finally:
            stop.cancel()


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
