"""Guest folders of earlier versions: kept while a box of any node may use them, then removed.

Several nodes may share the directory and do not see each other's boxes, so each marks what it uses by the time of a
file beside the folder; what nobody has marked for long, nobody uses.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

KEEP_S = 3600.0
"""Longer than a node may be away while its boxes live: their dead-man timer ends them far earlier."""
MARK = ".used"


class GuestFolders:
    """The guest folders below one directory. Used by one thread."""

    def __init__(
        self,
        root: Path,
        current: Path,
        in_use: Callable[[], Iterable[str]],
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`in_use` names the folders that this node's boxes have mounted."""
        self._root = root
        self._current = current
        self._in_use = in_use
        self._keep_s = keep_s
        self._clock = clock

    def tend(self) -> list[str]:
        """Mark what this node uses, remove what no node has marked for long; the names of the removed.

        Raises:
            OSError: the directory cannot be read or written.
        """
        now = self._clock()
        for name in {self._current.name, *(Path(folder).name for folder in self._in_use())}:
            if (self._root / name).is_dir():
                self._mark(name, now)
        removed = []
        for folder in self._root.iterdir():
            if folder.is_dir() and self._is_left(folder, now):
                self._remove(folder)
                removed.append(folder.name)
        return removed

    def _mark(self, name: str, now: float) -> None:
        mark = self._root / (name + MARK)
        mark.touch()
        os.utime(mark, (now, now))

    def _is_left(self, folder: Path, now: float) -> bool:
        if folder.name.startswith("."):
            # A build that was broken off; one that is under way is far younger.
            return now - folder.stat().st_mtime > self._keep_s
        mark = folder.with_name(folder.name + MARK)
        if not mark.exists():
            # Seen for the first time: somebody may be about to use it.
            self._mark(folder.name, now)
        return now - mark.stat().st_mtime > self._keep_s

    def _remove(self, folder: Path) -> None:
        log.info("a guest folder is removed", extra={"folder": str(folder)})
        # Gone at once for whoever looks for it, then at leisure.
        gone = folder.with_name(f".gone-{folder.name.lstrip('.')}")
        folder.rename(gone)
        shutil.rmtree(gone)
        folder.with_name(folder.name + MARK).unlink(missing_ok=True)
