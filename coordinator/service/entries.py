"""The sessions that this process knows: volume → **entries** → sessions; others are looked for on the volume."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from coordinator.service.facts import Facts
from coordinator.service.journal import EventId, Journal, Line, chain, first_line, last_line
from coordinator.service.records import RECORD, SessionRecord, read_record, session_dirs
from coordinator.session.events import Event, parse_event
from coordinator.session.reading import segments
from coordinator.session.step_events import TextDelta

log = logging.getLogger(__name__)

MAX_DELTAS = 256
"""Pieces of text that wait for one follower; a slow one misses some and gets the whole reply in any case."""


@dataclass(eq=False)
class Follower:
    """Somebody who watches a session that runs here."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_behind: bool = True
    """Something may have been kept that it has not read."""
    deltas: "asyncio.Queue[TextDelta]" = field(default_factory=lambda: asyncio.Queue(MAX_DELTAS))


@dataclass(eq=False)
class Entry:
    """One session. An event sink while it runs here."""

    record: SessionRecord
    directory: Path
    facts: Facts = field(default_factory=Facts)
    is_ours: bool = False
    """It waits or runs in this process."""
    followers: set[Follower] = field(default_factory=set)
    _journal: Journal | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _seen_mtime_ns: int = -1
    """Of the directory, when it was looked at last."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.record.session_id

    @property
    def waits_for_nobody(self) -> bool:
        """It was asked for over the API, and no process has begun it."""
        if self.record.wanted is None or self.is_ours or self.facts.state != "queued":
            return False
        # A fork has its beginning before anybody begins it.
        return bool(segments(self.directory)) == (self.record.forked_from is not None)

    def __call__(self, event: Event) -> None:
        """Take in what has just been kept."""
        if isinstance(event, TextDelta):
            for follower in self.followers:
                with suppress(asyncio.QueueFull):
                    follower.deltas.put_nowait(event)
        else:
            self.facts.add(event, datetime.now(UTC))
            for follower in self.followers:
                follower.is_behind = True
        self.wake()

    def wake(self) -> None:
        """Let followers look."""
        for follower in self.followers:
            follower.wake.set()

    def let_go(self) -> None:
        """It does not run here any more: what is kept is what counts; blocks for the reading of files."""
        with self._reading:
            self.is_ours = False
            if segments(self.directory):
                self.facts, self._journal = Facts(), None
        self.refresh()

    def refresh(self) -> None:
        """Take in what another process has kept since the last time; blocks for the reading of files."""
        with self._reading:
            if self.is_ours:
                return
            try:
                if self._journal is None:
                    self._begin()
                journal = self._journal or Journal(self.directory)
                self._journal = journal
                while lines := journal.read():
                    for line in lines:
                        _take(self.facts, line)
                wanted = self.record.wanted
                # A command's turn ends so only where something is waited for.
                if self.facts.is_between_turns and (wanted is None or wanted.stay_open):
                    self.facts.state = self.facts.state if self.facts.has_ended else "idle"
            except OSError as exc:
                log.warning("a transcript cannot be read", extra={"session_id": self.session_id, "error": str(exc)})

    def look(self) -> None:
        """Refresh unless it has ended and stayed so: whoever goes on with it makes a file in its directory."""
        try:
            mtime_ns = self.directory.stat().st_mtime_ns
        except OSError:
            return
        if not self.facts.has_ended or mtime_ns != self._seen_mtime_ns:
            self._seen_mtime_ns = mtime_ns
            self.refresh()

    def _begin(self) -> None:
        """Take a session that has ended from its first and its last event alone."""
        found = chain(self.directory)
        if not found:
            return
        generation, path, _ = found[-1]
        first, last = first_line(self.directory), last_line(path)
        if first is None or last is None or last["type"] != "session_ended":
            return
        _take(self.facts, Line(EventId(found[0][0], first["seq"]), first))
        end = EventId(generation, last["seq"])
        _take(self.facts, Line(end, last))
        self._journal = Journal(self.directory, after=end)


class Index:
    """All known sessions, by id.

    Args:
        state_dir: The shared volume.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def add(self, entry: Entry) -> None:
        """Know a session from now on."""
        self._entries[entry.session_id] = entry

    def load(self) -> None:
        """Know all sessions of the volume; blocks for the reading of files."""
        for directory in session_dirs(self._state_dir):
            entry = self._entries.get(directory.name) or self._found(directory)
            if entry is not None and not entry.is_ours:
                entry.look()

    def get(self, session_id: str) -> Entry | None:
        """Return a session, also one that another process has made; None if there is none. May block."""
        entry = self._entries.get(session_id)
        if entry is None and _is_id(session_id):
            directory = self._state_dir / "sessions" / session_id
            entry = self._found(directory) if directory.is_dir() else None
        if entry is not None:
            entry.refresh()
        return entry

    def newest_first(self) -> list[Entry]:
        """Return all sessions, by id from the newest on: ids sort by time."""
        return [self._entries[name] for name in sorted(self._entries, reverse=True)]

    def _found(self, directory: Path) -> Entry | None:
        if not (directory / RECORD).exists() and not segments(directory):
            # Of one that is being made, or of a sub-agent.
            return None
        entry = Entry(read_record(directory), directory)
        # Another thread may have found it meanwhile.
        return self._entries.setdefault(entry.session_id, entry)


def _is_id(text: str) -> bool:
    return 0 < len(text) <= 100 and all(char.isascii() and (char.isalnum() or char in "-_") for char in text)


def _take(facts: Facts, line: Line) -> None:
    fields = {name: value for name, value in line.fields.items() if name not in ("v", "seq", "at")}
    try:
        event = parse_event(fields)
    except ValidationError:
        # Of a later release.
        return
    facts.add(event, str(line.fields.get("at", "")))
