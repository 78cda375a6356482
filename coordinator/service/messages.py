"""What was said to one session and it has not had time for: API → held → **messages** → model.

A message that was accepted outlives its server: it is kept in the session's directory until the transcript has it. The
transcript counts what was heard, and so the next owner knows what of the file still waits.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.errors import TranscriptError
from coordinator.service.records import replace_file
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from coordinator.session.step_events import UserMessage
from coordinator.session.transcript import Entry

MESSAGES = "messages.json"
"""In the session's directory, for its owner only."""
MAX_MESSAGES = 100
"""Messages that wait for a session to have time for them."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    before: int
    """How many messages the session had heard before the first of these."""
    texts: tuple[str, ...]


@dataclass(eq=False)
class Message:
    """One that waits."""

    text: str


class Messages:
    """One session's messages, oldest first.

    Args:
        directory: The session's.
        heard: How many the transcript has.
        waiting: What was kept and has not been heard.
    """

    def __init__(self, directory: Path, heard: int = 0, waiting: Iterable[str] = ()) -> None:
        self._directory = directory
        self._taken = heard
        self._waiting = deque(Message(text) for text in waiting)
        self._last: Message | None = None
        """The one that was taken last: the transcript may not have it yet."""
        self._writing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, text: str) -> Message:
        """Let a message wait, for this process alone until it is kept.

        Raises:
            Refused: too many wait.
        """
        if len(self._waiting) >= MAX_MESSAGES:
            raise Refused(Code.TOO_MANY, f"{MAX_MESSAGES} messages wait already.", retry_after_s=10)
        message = Message(text)
        self._waiting.append(message)
        return message

    async def keep(self, message: Message) -> None:
        """Return once a message outlives this process.

        Raises:
            Refused: the volume does not take it; then it does not wait any more.
        """
        try:
            async with self._writing:
                first = [self._last] if self._last is not None else []
                kept = _Kept(before=self._taken - len(first), texts=tuple(one.text for one in (*first, *self._waiting)))
                await on_volume(_write, self._directory, kept)
        except Refused:
            if message in self._waiting:
                self._waiting.remove(message)
                raise

    def take(self) -> str:
        """Return the oldest message, to be heard now."""
        self._last = self._waiting.popleft()
        self._taken += 1
        return self._last.text


def heard_in(entries: Iterable[Entry]) -> int:
    """Return how many messages of persons a session has heard, by its transcript."""
    return sum(isinstance(entry.event, UserMessage) and entry.event.by == "user" for entry in entries)


def kept_messages(directory: Path, heard: int) -> Messages:
    """Return what waits for a session that has heard so many; blocks for the reading of a file.

    Raises:
        TranscriptError: what is kept cannot be read.
    """
    try:
        kept = _Kept.model_validate_json((directory / MESSAGES).read_bytes())
    except FileNotFoundError:
        return Messages(directory, heard)
    except (OSError, ValidationError) as exc:
        raise TranscriptError(f"{directory / MESSAGES} cannot be read: {exc}") from exc
    return Messages(directory, heard, kept.texts[max(heard - kept.before, 0) :])


def forget_messages(directory: Path) -> None:
    """Keep no messages of a session that has ended; blocks for the volume.

    Raises:
        OSError: the volume cannot be written.
    """
    (directory / MESSAGES).unlink(missing_ok=True)


def _write(directory: Path, kept: _Kept) -> None:
    replace_file(directory / MESSAGES, kept.model_dump_json().encode())
