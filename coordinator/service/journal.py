"""A session's events from its transcript, from any of them on: transcript → **journal** → SSE, client.

The file is what is read, also while the session runs here: what a follower sees is what was kept, it can go on from
any event, and one that is slow costs no memory. An event's id is its segment's generation and its number there.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from coordinator.session.reading import segments

PIECE_BYTES = 1024 * 1024
"""As much of a segment is read at once."""
POLL_S = 1.0
"""How often a segment is looked at that another process may be writing."""
TAIL_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024

_ID = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})")


@dataclass(frozen=True, order=True)
class EventId:
    """Where an event stands in its session."""

    generation: int
    seq: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that `str` wrote.

        Raises:
            ValueError: it is none.
        """
        found = _ID.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} is no id of an event, such as 1.17")
        return cls(int(found[1]), int(found[2]))


BEGINNING = EventId(0, 0)


@dataclass(frozen=True)
class Line:
    """One kept event."""

    id: EventId
    fields: dict[str, Any]
    """As the transcript has them: `v`, `seq`, `at`, `type` and the event's own."""

    @property
    def type(self) -> str:
        """The event's type."""
        return str(self.fields.get("type", ""))


def chain(session_dir: Path) -> list[tuple[int, Path, int | None]]:
    """Return the segments that count: generation, file, and how much of it counts; None for all that comes.

    A successor's first event says which segment it goes on from, and how much of that it has accepted.

    Raises:
        OSError: one cannot be read.
    """
    paths = segments(session_dir)
    for newest in sorted(paths, reverse=True):
        found: list[tuple[int, Path, int | None]] = []
        generation, accepted_bytes = newest, None
        while generation in paths and (first := _first_line(paths[generation])) is not None:
            found.insert(0, (generation, paths[generation], accepted_bytes))
            previous = first.get("previous")
            if first["type"] != "session_resumed" or not isinstance(previous, int) or previous >= generation:
                return found
            generation, accepted_bytes = previous, int(first.get("accepted_bytes") or 0)
        if found:
            return found
    return []


@dataclass
class _Segment:
    """One segment that is being read."""

    generation: int
    path: Path
    offset: int = 0
    """The end of the last whole line that was read."""

    def read(self, most_bytes: int | None) -> list[Line]:
        """Return whole lines that came since the last time, about a bounded number of bytes of them.

        Args:
            most_bytes: How much of the file counts; None for all.
        """
        piece = PIECE_BYTES if most_bytes is None else max(0, min(PIECE_BYTES, most_bytes - self.offset))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(piece)
            if len(content) == PIECE_BYTES and not content.endswith(b"\n"):
                content += file.readline()
        # A half line may still be cut off again by its writer, and is read anew.
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        parsed = [_parsed(line) for line in whole.split(b"\n")[:-1]]
        return [Line(EventId(self.generation, one["seq"]), one) for one in parsed if one is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(fields, dict) and isinstance(fields.get("seq"), int) and isinstance(fields.get("type"), str)
    return fields if is_event else None


@dataclass
class Journal:
    """Reads one session's events, in their order."""

    session_dir: Path
    after: EventId = BEGINNING
    """The last event that the reader has."""
    _open: dict[int, _Segment] = field(default_factory=dict)

    def read(self) -> list[Line]:
        """Return events that follow; empty when there are none yet. Blocks for the reading of a file.

        Raises:
            OSError: a segment cannot be read.
        """
        for generation, path, most_bytes in chain(self.session_dir):
            if generation < self.after.generation:
                continue
            segment = self._open.setdefault(generation, _Segment(generation, path))
            begun_at = -1
            # A piece may hold nothing that is new, and more may follow.
            while segment.offset != begun_at:
                begun_at = segment.offset
                lines = [line for line in segment.read(most_bytes) if line.id > self.after]
                if lines:
                    self.after = lines[-1].id
                    return lines
        return []


def last_id(session_dir: Path) -> EventId:
    """Return the id of a session's last event; `BEGINNING` where there is none. Blocks for the reading of a file.

    Raises:
        OSError: a segment cannot be read.
    """
    found = chain(session_dir)
    if not found:
        return BEGINNING
    generation, path, _ = found[-1]
    if (last := last_line(path)) is not None:
        return EventId(generation, last["seq"])
    # An event that is larger than what is looked at of a segment's end.
    journal = Journal(session_dir, EventId(generation, 0))
    while journal.read():
        pass
    return journal.after


def first_line(session_dir: Path) -> dict[str, Any] | None:
    """Return a session's first event; None where there is none."""
    found = chain(session_dir)
    return _first_line(found[0][1]) if found else None


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole event of a segment; None where there is none in its last part."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        *lines, _ = file.read().split(b"\n")
    for line in reversed(lines):
        parsed = _parsed(line)
        if parsed is not None:
            return parsed
    return None


def _first_line(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        line = file.readline(MAX_LINE_BYTES)
    return _parsed(line) if line.endswith(b"\n") else None
