"""Asking the human at the terminal: approvals → **terminal**."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

from coordinator.commands.typed_lines import TypedLines
from coordinator.errors import TranscriptError
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
    """Asks on a terminal; the call itself was shown by the timeline, whole. No answer is no.

    Args:
        display: What else writes on the terminal.
        cancelled: The session is ended.
        answers: What is typed.
        questions: Where they are asked.
        note: Keeps a person's answer before it counts; blocks, and raises `TranscriptError` where it cannot be kept.
    """

    waits = True

    def __init__(
        self,
        display: Display,
        cancelled: asyncio.Event,
        answers: TypedLines,
        questions: TextIO,
        note: Callable[[ApprovalRequest, Decided], None] = lambda request, decided: None,
    ) -> None:
        self._display = display
        self._cancelled = cancelled
        self._answers = answers
        self._questions = questions
        self._note = note

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        """Return the human's decision; a cancelled session or the end of the input is a no.

        Cancelled when the answer came from elsewhere or the deadline passed: says so, and forgets what was typed.
        """
        with self._display.paused():
            self._answers.forget()
            question = QUESTION.format(scope=THIS_CALL if request.lasting is None else COMMANDS)
            while True:
                try:
                    self._questions.write(question)
                    self._questions.flush()
                    line = await self._answers.line(self._cancelled)
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
                    return await self._noted(request, decided)

    async def _noted(self, request: ApprovalRequest, decided: Decided) -> Decided:
        try:
            await asyncio.to_thread(self._note, request, decided)
        except TranscriptError as exc:
            return Decided(False, by="the audit log", note=str(exc))
        return decided


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
