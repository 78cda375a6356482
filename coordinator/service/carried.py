"""Text between servers, whatever its size: posting → **carried** → wishes (Redis), or a file of the session's.

What is small travels in the wish or its answer itself, as calls and their outcomes do. What is larger lies on the
volume for as long as it takes the other side to read it: nothing that a caller posts may fill Redis' memory.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

CARRIED = "carried"
"""In the session's directory, for its owner only; whoever reads one of its files removes it."""
SMALL_CHARS = 64 * 1024
"""So many go through Redis: a wish that nobody takes may lie there for a day, two hundred of them for one session."""
_ITSELF = "="
"""Begins what is the text itself; no file's name begins with it."""


def carry(session_dir: Path, text: str) -> str:
    """Return the word that brings the other side a text; blocks for the volume where it is large.

    Raises:
        OSError: the volume does not take it.
    """
    if len(text) <= SMALL_CHARS:
        return _ITSELF + text
    word = uuid.uuid4().hex
    directory = session_dir / CARRIED
    directory.mkdir(mode=0o700, exist_ok=True)
    # Not synced: where the machine dies, who waits for it asks again.
    descriptor = os.open(directory / word, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        drop(session_dir, word)
        raise
    return word


def carried(session_dir: Path, word: str) -> str | None:
    """Return the text that a word brought, once; None where whoever sent it has given up. Blocks for the volume.

    Raises:
        OSError: the volume cannot be read.
    """
    if word.startswith(_ITSELF):
        return word.removeprefix(_ITSELF)
    path = session_dir / CARRIED / Path(word).name
    try:
        text = path.read_text(encoding="utf-8")
        path.unlink()
    except FileNotFoundError:
        return None
    return text


def drop(session_dir: Path, word: str) -> None:
    """Let nobody have a text any more that was not read; blocks for the volume."""
    if not word.startswith(_ITSELF):
        with contextlib.suppress(OSError):
            (session_dir / CARRIED / Path(word).name).unlink()


def forget_carried(session_dir: Path) -> None:
    """Keep no texts of a session that has ended, which nobody came to read; blocks for the volume."""
    shutil.rmtree(session_dir / CARRIED, ignore_errors=True)
