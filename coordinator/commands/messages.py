"""A person's messages between a session's turns: `sandhog chat`, and `sandhog run` on a terminal."""

import asyncio
import signal
from dataclasses import dataclass, field
from typing import TextIO

from coordinator.commands.own_cluster import Signals
from coordinator.commands.terminal import Display
from coordinator.commands.typed_lines import PASTED_WITHIN_S, TypedLines
from coordinator.session.events import Event
from coordinator.session.session_events import LimitsChanged, TurnEnded
from coordinator.session.step_events import UserMessage

FURTHER = "  another message, or Enter to end: "
PROMPT = "› "
MORE = "… "


@dataclass
class Messages:
    """Asks for the next message.

    A message is one line; on a terminal also what was pasted with it. A backslash at a line's end goes on in the next.
    """

    lines: TypedLines
    questions: TextIO
    display: Display
    stop: asyncio.Event
    """No message is waited for any more."""
    is_chat: bool = False
    """Messages come until their end; else a blank one ends the session."""
    signals: "ChatSignals | None" = None
    """What Ctrl-C means meanwhile, in a chat."""
    _said: str = ""

    def is_known(self, event: Event) -> bool:
        """Whether somebody at a terminal need not be shown it: their own words, and that they brought new replies."""
        if not self.lines.is_terminal:
            return False
        return isinstance(event, LimitsChanged) or (isinstance(event, UserMessage) and event.text == self._said)

    async def next(self, turn: TurnEnded | None = None) -> str | None:
        """Return the next message; None when there is none, or when the last turn's end leaves nothing to go on with.

        Args:
            turn: How the last turn ended; None before the first.
        """
        if turn is not None and not self._may_follow(turn):
            return None
        if self.signals is not None:
            self.signals.waits()
        with self.display.paused():
            text = await self._text()
        if text is not None and self.signals is not None:
            self.signals.runs()
        self._said = text or ""
        return text

    async def _text(self) -> str | None:
        while not self.stop.is_set():
            try:
                text = await self._message()
            except (OSError, ValueError):
                # The terminal is gone.
                return None
            if text is None or text.strip():
                return text
            if not self.is_chat:
                return None
        return None

    def _may_follow(self, turn: TurnEnded) -> bool:
        if self.is_chat:
            # What the endpoint refused may be asked again; without box, Redis or disk nothing can.
            return turn.status != "failed" or turn.stop_reason.startswith(("model:", "empty reply"))
        return turn.status in ("completed", "stopped")

    async def _message(self) -> str | None:
        """Return one message, "" for a blank line; None at the input's end or once stopped."""
        pieces: list[str] = []
        within_s: float | None = None
        while True:
            if within_s is None and self.lines.is_terminal:
                question = MORE if pieces else PROMPT if self.is_chat else FURTHER
                self.questions.write(question)
                self.questions.flush()
            line = await self.lines.line(self.stop, within_s)
            if line is None:
                return "\n".join(pieces) if pieces else None
            goes_on = line.endswith("\\")
            pieces.append(line[:-1] if goes_on else line)
            if not goes_on and (not self.lines.is_terminal or not any(pieces)):
                return "\n".join(pieces)
            within_s = None if goes_on else PASTED_WITHIN_S


@dataclass
class ChatSignals:
    """What Ctrl-C means in a chat: it ends the step; where none runs, or a second time, it ends the chat."""

    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the turn that runs."""
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    """No message is waited for any more."""
    is_waiting: bool = True
    """A message is waited for."""

    def waits(self) -> None:
        """No turn runs from now on."""
        self.is_waiting = True
        if not self.leave.is_set():
            self.turn.clear()

    def runs(self) -> None:
        """A turn runs from now on."""
        self.is_waiting = False

    def take(self, signals: Signals) -> None:
        """Let Ctrl-C mean this from now on; SIGTERM and a terminal that is closed end everything."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.came, signals.second)
        loop.add_signal_handler(signal.SIGTERM, self.end, signals.second)
        signals.take_hang_up(self.hung_up)

    def came(self, broken_off: asyncio.Event) -> None:
        """Take one Ctrl-C; `broken_off` ends what does not end by itself."""
        if self.is_waiting or self.turn.is_set():
            self.end(broken_off)
        self.turn.set()

    def end(self, broken_off: asyncio.Event) -> None:
        """End the chat; a second time, also what does not end by itself."""
        if self.leave.is_set():
            broken_off.set()
        self.hung_up()

    def hung_up(self) -> None:
        """End the chat, however often it is said."""
        self.leave.set()
        self.turn.set()
