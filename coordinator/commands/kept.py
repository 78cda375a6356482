"""Sessions that have ended, as they lie in the state directory."""

import re
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.session.reading import read_session
from coordinator.session.session_events import SessionStarted
from coordinator.session.transcript import CHILDREN_DIR
from worker.contract import keys
from worker.contract.removals import Kind, removals_of

_CHILD = re.compile(r"[0-9]+-[0-9]+-[0-9]+(?:\.[0-9]+-[0-9]+-[0-9]+)*")
_SESSION_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


@dataclass(frozen=True)
class KeptSession:
    """What is left of a session that worked on a private copy."""

    session_dir: Path
    workspace: Path
    """The directory that was copied."""
    patch: str
    """"" where nothing changed."""


def session_named(state_dir: Path, name: str) -> str:
    """Return the id of the session that a name stands for: all of an id, the beginning of only one, or `last`.

    Raises:
        ConfigError: it stands for none, or for several.
    """
    sessions = state_dir / "sessions"
    ids = (
        sorted(path.name for path in sessions.iterdir() if _SESSION_ID.fullmatch(path.name))
        if sessions.is_dir()
        else []
    )
    if name == "last" and ids:
        return ids[-1]
    if name in ids:
        return name
    found = [one for one in ids if name and one.startswith(name)]
    if not found:
        gone = [one for one in removals_of(state_dir, name) if one.kind is Kind.SESSION]
        if gone:
            raise ConfigError(f"Session {gone[-1].session} was removed at {gone[-1].at} ({gone[-1].why}).")
        raise ConfigError(f"There is no session {name} below {sessions}.")
    if len(found) > 1:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise ConfigError(f"{name} is the beginning of {len(found)} sessions: {shown}. Give more of the id.")
    return found[0]


def directory_of(state_dir: Path, name: str) -> Path:
    """Return the directory of a session, or of a sub-agent by its whole id.

    Raises:
        ConfigError: there is none of that name.
    """
    above, mark, child = name.partition(keys.CHILD_MARK)
    session_dir = state_dir / "sessions" / session_named(state_dir, above)
    if not mark:
        return session_dir
    child_dir = session_dir / CHILDREN_DIR / child
    if not _CHILD.fullmatch(child) or not child_dir.is_dir():
        raise ConfigError(f"Session {session_dir.name} has no sub-agent {child}.")
    return child_dir


def find_session(state_dir: Path, session_id: str) -> KeptSession:
    """Return an ended session.

    Raises:
        ConfigError: there is none of that id, or it worked on the directory itself.
        TranscriptError: its transcript cannot be read.
    """
    session_id = session_named(state_dir, session_id)
    session_dir = state_dir / "sessions" / session_id
    entries = read_session(session_dir).entries
    started = next((entry.event for entry in entries if isinstance(entry.event, SessionStarted)), None)
    patch = session_dir / "patch.diff"
    if started is None or not patch.exists():
        raise ConfigError(f"Session {session_id} has no patch: it worked on the directory itself, or did not end.")
    return KeptSession(session_dir, Path(started.workspace), patch.read_text(errors="replace"))
