"""Set-id bits that a session left on a bound directory: outside the box they would give its owner's rights away."""

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from worker.beneath import OPEN_DIRECTORY, change_mode
from worker.changes import shown

MAX_ENTRIES = 1_000_000
SET_IDS = stat.S_ISUID | stat.S_ISGID


def strip_set_ids(directory: Path, since_ns: int) -> list[str]:
    """Remove the set-uid and set-gid bits of regular files changed since a time; return their paths for people.

    Goes to any depth, but looks at no more than `MAX_ENTRIES` entries and says so where there are more. No link is
    followed.

    Raises:
        OSError: the directory is gone or cannot be read.
    """
    # One descriptor goes down by name and up by "..": nesting costs neither descriptors nor a stack.
    walk = _Walk(os.open(directory, OPEN_DIRECTORY), since_ns)
    try:
        walk.look()
        while walk.pending and walk.seen <= MAX_ENTRIES:
            walk.step()
    finally:
        os.close(walk.descriptor)
    cut = [f"(only the first {MAX_ENTRIES} entries were looked at)"] if walk.pending else []
    return [shown(path) for path in walk.stripped] + cut


@dataclass
class _Walk:
    """Where a walk stands: in a directory, with what is left to visit in it and in each one above."""

    descriptor: int
    since_ns: int
    names: list[str] = field(default_factory=list)
    """Components of the path from the root to here."""
    inodes: list[int] = field(default_factory=list)
    """Of the root, and so on down to here."""
    pending: list[list[str]] = field(default_factory=list)
    seen: int = 0
    stripped: list[str] = field(default_factory=list)

    def step(self) -> None:
        """Go to the next directory below, or up where there is none."""
        if self.pending[-1]:
            name = self.pending[-1].pop()
            # It may have been moved, replaced or closed since it was listed.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                self._enter(name)
                self.names.append(name)
                self.look()
            return
        self.pending.pop()
        self.inodes.pop()
        if self.pending:
            self.names.pop()
            self._enter("..")
            if os.fstat(self.descriptor).st_ino != self.inodes[-1]:
                raise OSError(f"{'/'.join(self.names)!r} was moved while its set-id bits were looked for")

    def look(self) -> None:
        """Strip the files of this directory and note its subdirectories."""
        self.inodes.append(os.fstat(self.descriptor).st_ino)
        self.pending.append([])
        with os.scandir(self.descriptor) as entries:
            found = list(entries)
        self.seen += 1 + len(found)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                self.pending[-1].append(entry.name)
            else:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    self._strip(entry.name)

    def _enter(self, name: str) -> None:
        following = os.open(name, OPEN_DIRECTORY, dir_fd=self.descriptor)
        os.close(self.descriptor)
        self.descriptor = following

    def _strip(self, name: str) -> None:
        status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        changed = status.st_ctime_ns >= self.since_ns and status.st_mode & SET_IDS
        if changed and change_mode(name, self.descriptor, 0, SET_IDS, kind=stat.S_IFREG):
            self.stripped.append("/".join([*self.names, name]))
