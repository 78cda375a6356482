"""What lies on the volume of a session: its transcript and its patch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from coordinator.service.journal import chain

PIECE_BYTES = 256 * 1024
PATCH = "patch.diff"


def transcript(session_dir: Path) -> Iterator[bytes]:
    """Return the whole lines of all segments that count, in pieces; what is written meanwhile is not in it.

    Raises:
        OSError: a segment cannot be opened.
    """
    parts = [(path.open("rb"), most_bytes) for _, path, most_bytes in chain(session_dir)]

    def pieces() -> Iterator[bytes]:
        try:
            for file, most_bytes in parts:
                left = os.fstat(file.fileno()).st_size if most_bytes is None else most_bytes
                # A torn end is cut off: the next segment begins with a line of its own.
                while left > 0 and (lines := file.readlines(min(left, PIECE_BYTES))):
                    left -= sum(len(line) for line in lines)
                    yield b"".join(line for line in lines if line.endswith(b"\n"))
        finally:
            for file, _ in parts:
                file.close()

    return pieces()


def open_patch(session_dir: Path) -> BinaryIO:
    """Return the session's patch, open; it may be hundreds of megabytes, and many may ask for one at once.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    return (session_dir / PATCH).open("rb")


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield what is in a file, and close it."""
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def copy_dir(session_dir: Path) -> Path:
    """Return where a session's private copy lies while it is there: below a disk of its own where it has one."""
    return session_dir / "disk" / "work" if (session_dir / "disk.img").exists() else session_dir / "work"
