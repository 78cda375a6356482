"""Room on the shared volume that is kept for the end: a full disk must not tear a transcript.

One file for each state directory. It is freed when an append finds no room, so that what runs can be written to its
end; until there is room for it again, no new session begins.
"""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from coordinator.errors import TranscriptError

RESERVE_BYTES = 64 * 1024 * 1024
ENDING_BYTES = 1024 * 1024
"""For one that goes on only to say how it ended."""
NAME = "reserve"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What an append ends with that finds no room."""


class Reserve:
    """The reserve of one state directory; any number of processes may hold it together."""

    def __init__(self, state_dir: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = state_dir / NAME
        self._size_bytes = size_bytes

    def hold(self) -> None:
        """Make sure that the reserve is there.

        Raises:
            TranscriptError: there is no room for it, or it cannot be made.
        """
        try:
            if self._path.stat().st_size >= self._size_bytes:
                return
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise TranscriptError(f"{self._path} cannot be looked at: {exc}") from exc
        try:
            self._make()
        except OSError as exc:
            if exc.errno in FULL:
                raise TranscriptError(
                    f"The disk of {self._path.parent} is full: no session begins without {self._size_bytes >> 20} MiB "
                    "kept for the end of those that run. Make room, or name another place with SANDHOG_STATE_DIR."
                ) from exc
            raise TranscriptError(f"{self._path} cannot be made: {exc}. SANDHOG_STATE_DIR names its place.") from exc

    def free(self) -> bool:
        """Give its room to whoever appends next; True if there was some to give."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _make(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{NAME}.", dir=self._path.parent)
        try:
            os.posix_fallocate(descriptor, 0, self._size_bytes)
            Path(name).replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(descriptor)
