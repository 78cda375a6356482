"""Read a whole session back: its segments → **reading** → rebuild, show, export.

Each generation of a session writes one segment. A successor's first event names the segment before it and how much of
that counts; from the newest segment on, that chain is the session, and what lies beside it is ignored.
"""

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import TranscriptError
from coordinator.session.session_events import SessionResumed, SessionStarted
from coordinator.session.transcript import Entry, Reading, read_transcript

_SEGMENT = re.compile(r"(?P<session>.+)\.(?P<generation>[0-9]{1,9})\.jsonl")


@dataclass(frozen=True)
class SessionReading:
    """What a session's transcript holds, over all of its segments."""

    session_id: str
    entries: tuple[Entry, ...]
    """All readable lines that count, in order."""
    faults: tuple[str, ...]
    """One sentence for each line or segment that was skipped."""
    generation: int
    """That of the last segment that counts."""
    valid_bytes: int
    """How much of that segment counts."""
    newest_generation: int
    """The highest that any file has: the next owner's is above it."""


def segments(session_dir: Path) -> dict[int, Path]:
    """Return a session's segments by generation; none where there is no such directory."""
    found = {}
    for path in session_dir.glob("*.jsonl"):
        if match := _SEGMENT.fullmatch(path.name):
            found[int(match["generation"])] = path
    return found


def is_last_owner(session_dir: Path, generation: int) -> bool:
    """Return whether no owner of a session later than this generation's has written anything."""
    return max(segments(session_dir), default=0) <= generation


def read_session(session_dir: Path) -> SessionReading:
    """Return all that counts of a session's transcript; no entries where its owner did not come to write any.

    Raises:
        TranscriptError: there is none, or it cannot be read.
    """
    paths = segments(session_dir)
    if not paths:
        raise TranscriptError(f"{session_dir} holds no transcript.")
    chain: list[tuple[int, Reading]] = []
    faults: list[str] = []
    for generation in sorted(paths, reverse=True):
        chain = _chain(paths, generation, faults)
        if chain:
            break
    generation, last = chain[-1] if chain else (min(paths), read_transcript(paths[min(paths)], accepted_bytes=0))
    name = _SEGMENT.fullmatch(paths[generation].name)
    assert name is not None
    return SessionReading(
        session_id=name["session"],
        entries=tuple(entry for _, reading in chain for entry in reading.entries),
        faults=(*faults, *(fault for _, reading in chain for fault in reading.faults)),
        generation=generation,
        valid_bytes=last.valid_bytes,
        newest_generation=max(paths),
    )


def _chain(paths: dict[int, Path], generation: int, faults: list[str]) -> list[tuple[int, Reading]]:
    """Return a segment behind those before it, oldest first; none where its owner did not get to its first event."""
    chain: list[tuple[int, Reading]] = []
    accepted_bytes: int | None = None
    while True:
        if generation not in paths:
            faults.append(f"The part {generation} of the transcript is missing.")
            break
        reading = read_transcript(paths[generation], accepted_bytes=accepted_bytes)
        if not reading.entries:
            break
        chain.insert(0, (generation, reading))
        first = reading.entries[0].event
        if not isinstance(first, SessionResumed) or first.previous >= generation:
            if not isinstance(first, SessionStarted):
                faults.append(f"{paths[generation].name} does not say how it began.")
            break
        generation, accepted_bytes = first.previous, first.accepted_bytes
    return chain


def is_being_written(session_dir: Path) -> bool:
    """Return whether a process of this machine, or of the same volume where that locks, has the newest segment open."""
    paths = segments(session_dir)
    if not paths:
        return False
    try:
        descriptor = os.open(paths[max(paths)], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise TranscriptError(f"The transcript {paths[max(paths)]} cannot be read: {exc}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
