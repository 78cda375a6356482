"""Sessions that have ended, as they lie in the state directory."""

import re
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.session.events import SessionStarted
from coordinator.session.transcript import read_transcript, segment_path

_SESSION_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


@dataclass(frozen=True)
class KeptSession:
    """What is left of a session that worked on a private copy."""

    session_dir: Path
    workspace: Path
    """The directory that was copied."""
    patch: str
    """"" where nothing changed."""


def find_session(state_dir: Path, session_id: str) -> KeptSession:
    """Return an ended session.

    Raises:
        ConfigError: there is none of that id, or it worked on the directory itself.
        TranscriptError: its transcript cannot be read.
    """
    session_dir = state_dir / "sessions" / session_id
    if not _SESSION_ID.fullmatch(session_id) or not session_dir.is_dir():
        raise ConfigError(f"There is no session {session_id} below {state_dir / 'sessions'}.")
    reading = read_transcript(segment_path(session_dir, session_id, 1))
    started = next((entry.event for entry in reading.entries if isinstance(entry.event, SessionStarted)), None)
    patch = session_dir / "patch.diff"
    if started is None or not patch.exists():
        raise ConfigError(f"Session {session_id} has no patch: it worked on the directory itself, or did not end.")
    return KeptSession(session_dir, Path(started.workspace), patch.read_text(errors="replace"))
