"""Imports of a child that has given up its rights: Python itself may lie where only root gets to.

An interpreter in root's home (pyenv and uv put it there) cannot be reached by another user, and much of the standard
library is imported late. Directories that are closed to others are held open before the rights go, and imports find
them by their descriptors. What lies in such a directory still has to be readable for others.
"""

import os
import stat
import sys
from pathlib import Path


def hold_import_paths() -> None:
    """Keep what is imported from reachable for a user who cannot get to it by its path. Call it as root.

    Afterwards `/proc/self/fd` must be this process's own, see `PR_SET_DUMPABLE`.
    """
    held = {
        path: f"/proc/self/fd/{_open(path)}" for path in sys.path if path and Path(path).is_dir() and is_closed(path)
    }
    if not held:
        return
    sys.path[:] = [held.get(path, path) for path in sys.path]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            places[:] = [_moved(place, held) for place in places]
    sys.path_importer_cache.clear()


def is_closed(path: str) -> bool:
    """Whether a user of no rights is kept from a directory by it or by one above it."""
    directory = Path(path).resolve()
    return any(not _is_open(above) for above in (directory, *directory.parents))


def _is_open(directory: Path) -> bool:
    return bool(directory.stat().st_mode & stat.S_IXOTH)


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _moved(place: str, held: dict[str, str]) -> str:
    # The longest first: site-packages lie within the library.
    for path in sorted(held, key=len, reverse=True):
        if place.startswith(path + os.sep):
            return held[path] + place.removeprefix(path)
    return place
