"""A session's read metadata while nobody has it: place → **seen file** → place of the next owner.

Without it, files must be read again before they are changed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

SEEN_FILE = "seen.json"
"""In the session's directory, for its owner only."""
_RECORDS = TypeAdapter(dict[str, str])


def read_seen(session_dir: Path) -> dict[str, str]:
    """Return what is kept; nothing where that is not there, or cannot be read."""
    try:
        return _RECORDS.validate_json((session_dir / SEEN_FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def keep_seen(session_dir: Path, records: Mapping[str, str]) -> None:
    """Keep it.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(session_dir / SEEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(records), file)


def forget_seen(session_dir: Path) -> None:
    """Remove what was kept: the session has it again."""
    (session_dir / SEEN_FILE).unlink(missing_ok=True)
