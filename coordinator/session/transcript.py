"""Keep what happened: events → **transcript** (a file), and read it back.

One event a line of JSON, appended by one write; the file of a generation is created once and has one writer.
Format: `{"v":1,"seq":1,"at":"2030-01-31T12:00:00.000Z","type":"step_started",…}`. `seq` counts from 1 in each file.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from coordinator.errors import TranscriptError
from coordinator.session.events import Event, is_kept, parse_event
from coordinator.session.redact import Redactor
from coordinator.session.reserve import FULL, Reserve

VERSION = 1
"""Raised when an old reader could misread a new line; new fields and types do not raise it."""
CHILDREN_DIR = "children"
"""In the session's directory: a directory for each of its sub-agents, with a transcript of its own."""


class Transcript:
    """The segment that one generation of a session writes. Calling it appends an event.

    Args:
        path: The file; it must not exist.
        secrets: Values that must never reach the file.
        reserve: Room for the last events when the disk is full; None for none.
        now: The time of day.

    Raises:
        TranscriptError: The file exists (another owner wrote it) or cannot be created.
    """

    def __init__(
        self,
        path: Path,
        *,
        secrets: Iterable[str] = (),
        reserve: Reserve | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path = path
        self._redactor = Redactor(secrets)
        self._reserve = reserve
        self._full: str | None = None
        """Why the session must end: its last events are written into the reserve."""
        self._now = now
        self._seq = 0
        self._size_bytes = 0
        self._is_dirty = False
        self._syncing = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            # Says that somebody writes here, where the volume locks; whom it stops is for readers to decide.
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_directory(path.parent)
        except FileExistsError as exc:
            raise TranscriptError(f"{path} exists: another process owns this generation of the session.") from exc
        except OSError as exc:
            raise TranscriptError(f"The transcript {path} cannot be created: {exc}") from exc

    @classmethod
    def create(
        cls,
        session_dir: Path,
        session_id: str,
        generation: int = 1,
        *,
        secrets: Iterable[str] = (),
        reserve: Reserve | None = None,
    ) -> "Transcript":
        """The segment `<session_dir>/<session_id>.<generation>.jsonl`, new.

        Raises:
            TranscriptError: It exists or cannot be created.
        """
        return cls(segment_path(session_dir, session_id, generation), secrets=secrets, reserve=reserve)

    @property
    def size_bytes(self) -> int:
        """What was written so far, whole lines only."""
        return self._size_bytes

    def __call__(self, event: Event) -> None:
        """Appends one event; what is only shown is not kept.

        Raises:
            TranscriptError: It could not be written whole; the file ends with the line before.
        """
        if not is_kept(event):
            return
        at = self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = self._redactor.value(event.model_dump())
        line = {"v": VERSION, "seq": self._seq + 1, "at": at, **fields}
        content = to_json(line) + b"\n"
        try:
            self._append(content)
        except OSError as exc:
            if exc.errno not in FULL or self._reserve is None or not self._reserve.free():
                raise TranscriptError(f"The transcript {self.path} cannot be written: {exc}") from exc
            self._append_again(content, exc)
        self._seq += 1
        self._size_bytes += len(content)
        self._is_dirty = True

    def _append(self, content: bytes) -> None:
        """Writes a line whole, or leaves the file as it was."""
        try:
            written = os.write(self._file, content)
            if written != len(content):
                # The rest tells why it was not taken.
                written += os.write(self._file, content[written:])
            if written != len(content):
                raise OSError(f"only {written} of {len(content)} bytes were taken")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size_bytes)
            raise

    def _append_again(self, content: bytes, why: OSError) -> None:
        """Writes a line into the room that was kept for it: the session ends before its next request."""
        try:
            self._append(content)
        except OSError as exc:
            raise TranscriptError(f"The transcript {self.path} cannot be written: {exc}") from exc
        self._full = f"The disk of the transcript {self.path} is full: {why.strerror}. Make room, then resume."

    async def sync_aside(self) -> None:
        """As `sync`, in a thread: on a shared volume it takes milliseconds, in which other sessions go on.

        Raises:
            TranscriptError: As `sync`.
        """
        if self._is_dirty or self._full is not None:
            await asyncio.to_thread(self.sync)

    def sync(self) -> None:
        """Returns when all that was appended is on the disk; blocks for that long.

        Raises:
            TranscriptError: The disk did not take it, or has room for the last events only.
        """
        if self._full is not None:
            raise TranscriptError(self._full)
        self._sync()

    def _sync(self) -> None:
        # What is appended meanwhile may have come too late for this one: it is dirty again.
        with self._syncing:
            if not self._is_dirty or self._file < 0:
                return
            self._is_dirty = False
            try:
                os.fsync(self._file)
            except OSError as exc:
                self._is_dirty = True
                raise TranscriptError(f"The transcript {self.path} cannot be brought to the disk: {exc}") from exc

    def close(self) -> None:
        """Syncs and closes; may be called again."""
        if self._file < 0:
            return
        try:
            self._sync()
        finally:
            # A thread may be at it still, whose waiter was cancelled: its descriptor must not be another file's.
            with self._syncing:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> "Transcript":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Entry:
    """One line of a transcript."""

    seq: int
    """Its number in the file, from 1."""
    at: str
    """When it was written, ISO 8601 in UTC."""
    fields: dict[str, Any]
    """The event's fields as they stand there."""
    event: Event | None
    """None for an event that this version does not know."""


@dataclass(frozen=True)
class Reading:
    """What a transcript holds."""

    entries: tuple[Entry, ...]
    """All readable lines in order."""
    faults: tuple[str, ...]
    """One sentence for each line that was skipped."""
    valid_bytes: int
    """Length up to the end of the last whole line."""
    torn_bytes: int
    """Length of the half line behind it, 0 when the file ends well."""


def segment_path(session_dir: Path, session_id: str, generation: int) -> Path:
    """Where a generation of a session writes."""
    return session_dir / f"{session_id}.{generation}.jsonl"


def read_transcript(path: Path, *, accepted_bytes: int | None = None) -> Reading:
    """Reads a segment; a torn end is tolerated, a corrupt line is reported and skipped.

    Args:
        path: The segment.
        accepted_bytes: Read no further: what a successor accepted of it. None for all.

    Raises:
        TranscriptError: The file cannot be read.
    """
    try:
        content = path.read_bytes()[:accepted_bytes]
    except OSError as exc:
        raise TranscriptError(f"The transcript {path} cannot be read: {exc}") from exc
    *lines, torn = content.split(b"\n")
    entries: list[Entry] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(_entry(line))
        except (ValueError, RecursionError) as exc:
            faults.append(f"{path.name} line {number} is skipped: {str(exc).splitlines()[0]}")
    return Reading(tuple(entries), tuple(faults), len(content) - len(torn), len(torn))


def _entry(line: bytes) -> Entry:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    version, seq, at = (fields.pop(name, None) for name in ("v", "seq", "at"))
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(f"version {version!r} is not one this program reads")
    if not isinstance(seq, int) or not isinstance(at, str) or not isinstance(fields.get("type"), str):
        raise ValueError("seq, at or type is missing")
    try:
        event = parse_event(fields)
    except ValidationError as exc:
        if exc.errors()[0]["type"] != "union_tag_invalid":
            raise ValueError(f"not a whole {fields['type']} event: {exc.errors()[0]['msg']}") from exc
        event = None
    return Entry(seq, at, fields, event)


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
