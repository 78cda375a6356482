"""What lies on the volume of a session: its transcript and its patch."""

from collections.abc import Iterator
from pathlib import Path

from coordinator.service.journal import segments

PIECE_BYTES = 256 * 1024
PATCH = "patch.diff"


def transcript(session_dir: Path) -> Iterator[bytes]:
    """Return the whole lines of all segments, in pieces; what is written meanwhile is not in it.

    Raises:
        OSError: a segment cannot be opened.
    """
    files = [path.open("rb") for _, path in segments(session_dir)]

    def pieces() -> Iterator[bytes]:
        try:
            for file in files:
                # A torn end is cut off: the next segment begins with a line of its own.
                while lines := file.readlines(PIECE_BYTES):
                    yield b"".join(line for line in lines if line.endswith(b"\n"))
        finally:
            for file in files:
                file.close()

    return pieces()


def patch(session_dir: Path) -> bytes:
    """Return the session's patch.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    return (session_dir / PATCH).read_bytes()
