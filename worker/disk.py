"""What sessions' boxes write to disk, looked at again and again: boxes → **disk** → those that wrote too much.

Where nothing in the kernel bounds a directory, a box can go beyond its bound until it is looked at (see `own_disk`).
"""

import logging
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.profiles import shown_bytes
from sandbox.spec import MIB

log = logging.getLogger(__name__)

STEP_BYTES = 64 * MIB
"""A directory is measured again only when its file system lost so much room since the last time."""
MEASURE_TIMEOUT_S = 300


@dataclass
class _Watched:
    directory: Path | None
    is_copy: bool
    limit_bytes: int
    base_bytes: int | None = None
    """What was there at the first look, for a directory that was not made for the session."""
    free_bytes: dict[Path, int] = field(default_factory=dict)
    """What the file systems had free when they were last looked at."""


class DiskWatch:
    """Knows how much each box may write. Thread-safe."""

    def __init__(self, layer_bytes: Callable[[str], int], data_dir: Path, step_bytes: int = STEP_BYTES) -> None:
        """`layer_bytes`: what a box wrote outside of its mounts, below the engine's `data_dir`."""
        self._layer_bytes = layer_bytes
        self._data_dir = data_dir
        self._step_bytes = step_bytes
        self._guard = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def watch(self, box_id: str, directory: Path | None, *, is_copy: bool, limit_bytes: int) -> None:
        """Look at this box from now on; again does nothing. `directory`: None where the kernel bounds its workspace."""
        with self._guard:
            self._watched.setdefault(box_id, _Watched(directory, is_copy, limit_bytes))

    def keep(self, box_ids: set[str]) -> None:
        """Forget all other boxes."""
        with self._guard:
            self._watched = {box_id: watched for box_id, watched in self._watched.items() if box_id in box_ids}

    def excess(self, box_id: str) -> str | None:
        """Return what a box has beyond its bound, in words; None when it has not, or cannot be measured now."""
        with self._guard:
            watched = self._watched.get(box_id)
        if watched is None:
            return None
        try:
            return self._of_workspace(watched) or self._of_layer(box_id, watched)
        except (OSError, SandboxError, subprocess.SubprocessError, ValueError) as exc:
            log.warning("a box's disk use cannot be measured", extra={"box_id": box_id, "error": str(exc)})
            return None

    def _of_workspace(self, watched: _Watched) -> str | None:
        if watched.directory is None or not self._has_changed(watched, watched.directory):
            return None
        used = measured_bytes(watched.directory)
        if watched.base_bytes is None:
            watched.base_bytes = 0 if watched.is_copy else used
        grown = used - watched.base_bytes
        if grown <= watched.limit_bytes:
            return None
        verb = "holds" if watched.is_copy else "grew by"
        return f"/workspace {verb} {shown_bytes(grown)} of the {shown_bytes(watched.limit_bytes)} that are allowed"

    def _of_layer(self, box_id: str, watched: _Watched) -> str | None:
        if not self._has_changed(watched, self._data_dir):
            return None
        used = self._layer_bytes(box_id)
        if used <= watched.limit_bytes:
            return None
        allowed = shown_bytes(watched.limit_bytes)
        return f"the files outside of /workspace grew by {shown_bytes(used)} of the {allowed} that are allowed"

    def _has_changed(self, watched: _Watched, place: Path) -> bool:
        """Whether much was written to the file system of a place since the last time, by whomever."""
        try:
            status = os.statvfs(place)
        except FileNotFoundError:
            # The engine is on another machine.
            return True
        free = status.f_bavail * status.f_frsize
        before = watched.free_bytes.get(place)
        if before is not None and before - free < self._step_bytes:
            # Room that was given back counts from there.
            watched.free_bytes[place] = max(before, free)
            return False
        watched.free_bytes[place] = free
        return True


def measured_bytes(directory: Path) -> int:
    """Return what the files below a directory take on disk; links are not followed, nor other file systems entered.

    Raises:
        subprocess.SubprocessError: it took too long.
        ValueError: it cannot be measured.
    """
    # A tree made by a model may be deeper than Python can walk.
    argv = ["du", "-s", "-k", "-x", "--", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=MEASURE_TIMEOUT_S, check=False)
    # Files that vanish meanwhile make it fail after it has counted the others.
    kilobytes = done.stdout.split("\t", 1)[0]
    if not kilobytes.isdigit():
        raise ValueError(done.stderr.strip()[-500:])
    return int(kilobytes) * 1024
