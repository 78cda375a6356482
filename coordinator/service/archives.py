"""Uploaded archives, until sessions are made of them: HTTP → **archives** → admission → the session's directory."""

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from coordinator.service.refusals import Code, Refused

DIRECTORY = "archives"
KEEP_S = 86_400.0
"""An archive is there so long for sessions to be made of it."""
ROOM_BYTES = 2 * 1024**3
"""Uploads leave so much of the volume to the sessions: nodes start no box below half of it (`SANDHOG_MIN_FREE_MIB`)."""
LOOK_BYTES = 16 * 1024**2
"""How much is written before it is looked again what is left."""


class Archives:
    """The archives of one volume. Each is its uploader's alone.

    Args:
        state_dir: The shared volume.
        now: The time of day in seconds.
        room_bytes: What uploads leave free.
    """

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time, *, room_bytes: int = ROOM_BYTES) -> None:
        self._root = state_dir / DIRECTORY
        self._now = now
        self._room_bytes = room_bytes

    def path(self, archive: str, principal: str) -> Path:
        """Return where an archive lies.

        Raises:
            Refused: the principal has none of that name.
        """
        path = self._directory(principal) / archive
        if not path.is_file():
            raise Refused(Code.INVALID, f"archive: there is no {archive}.", "Send it with PUT /v1/archives first.")
        return path

    async def keep(self, pieces: AsyncIterator[bytes], principal: str) -> tuple[str, int]:
        """Write an upload down; return its name and its size.

        Raises:
            OSError: it cannot be written; nothing of it is left.
            Refused: it is empty, or the volume has no room for it.
        """
        directory = self._directory(principal)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sweep()
        name = secrets.token_hex(16)
        part, size, looked_at = directory / f"{name}.part", 0, -LOOK_BYTES
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                # Pieces are small, and the disk's cache takes them at once: a thread for each would cost far more.
                async for piece in pieces:
                    if size - looked_at >= LOOK_BYTES:
                        looked_at = size
                        self._demand_room()
                    file.write(piece)
                    size += len(piece)
            if not size:
                raise Refused(Code.INVALID, "The archive is empty.", "Send the file as the body, as `curl -T FILE`.")
            part.rename(directory / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return name, size

    def sweep(self) -> None:
        """Remove archives whose time is over, and uploads that were broken off with their process."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._root.glob("*/*"):
                if path.stat().st_mtime < self._now() - KEEP_S:
                    path.unlink(missing_ok=True)

    def _demand_room(self) -> None:
        if shutil.disk_usage(self._root).free < self._room_bytes:
            words = "The server's volume has no room for archives: what is left is for sessions."
            raise Refused(Code.UNAVAILABLE, words, "Archives are kept for a day; ask again later.", retry_after_s=600)

    def _directory(self, principal: str) -> Path:
        # A name of our own making: the principal's could be that of something else.
        return self._root / hashlib.sha256(principal.encode()).hexdigest()[:32]
