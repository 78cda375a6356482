"""A private copy of a directory tree: modes, links and times as they are, sockets, FIFOs and devices left out.

No link is followed. A file system that can share blocks does (reflink); holes of sparse files stay holes.
"""

import contextlib
import errno
import fcntl
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from worker.beneath import OPEN_DIRECTORY, OPEN_FILE

MAX_DEPTH = 200
"""Directories inside each other; each level holds two descriptors open while it is copied."""

_FICLONE = 0x40049409
_SMALL_BYTES = 65_536
_SEND_BYTES = 1 << 30


class TooDeep(Exception):
    """The tree is nested deeper than `MAX_DEPTH`."""


@dataclass
class Copier:
    """Copies trees and counts what it left out. Used by one thread."""

    uid: int | None = None
    """Owner of all copied; None leaves it to the process."""
    gid: int | None = None
    without: frozenset[str] = frozenset()
    """Names that are left out at every level."""
    special_files: int = 0
    """Sockets, FIFOs and devices met."""
    _reflink: bool = field(default=True, init=False)

    def copy(self, source: Path, target: Path) -> None:
        """Copy a directory to a path where nothing is.

        Raises:
            OSError: something cannot be read or written; what is there of the target stays.
            TooDeep: the source is nested too deep.
        """
        target.mkdir(mode=0o700)
        self.fill(source, target)

    def fill(self, source: Path, target: Path) -> None:
        """Copy a directory's content, owner, mode and time to an empty directory.

        Raises:
            OSError: something cannot be read or written; what is there of the target stays.
            TooDeep: the source is nested too deep.
        """
        source_fd = os.open(source, OPEN_DIRECTORY)
        try:
            target_fd = os.open(target, OPEN_DIRECTORY)
            try:
                self._directory(source_fd, target_fd, 0)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _directory(self, source: int, target: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TooDeep
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries if entry.name not in self.without]
        for name in names:
            # What vanishes while its directory is copied was not there.
            with contextlib.suppress(FileNotFoundError):
                self._entry(name, source, target, depth)
        status = os.fstat(source)
        self._settle(target, status, stat.S_IMODE(status.st_mode) & 0o1777)

    def _entry(self, name: str, source: int, target: int, depth: int) -> None:
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            inner = os.open(name, OPEN_DIRECTORY, dir_fd=source)
            try:
                os.mkdir(name, mode=0o700, dir_fd=target)
                made = os.open(name, OPEN_DIRECTORY, dir_fd=target)
                try:
                    self._directory(inner, made, depth + 1)
                finally:
                    os.close(made)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            self._file(name, source, target)
        elif stat.S_ISLNK(mode):
            self._link(name, source, target)
        else:
            self.special_files += 1

    def _link(self, name: str, source: int, target: int) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if self.uid is not None and self.gid is not None:
            os.chown(name, self.uid, self.gid, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _file(self, name: str, source: int, target: int) -> None:
        inner = os.open(name, OPEN_FILE, dir_fd=source)
        try:
            status = os.fstat(inner)
            if not stat.S_ISREG(status.st_mode):
                self.special_files += 1
                return
            made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            try:
                self._content(inner, made, status)
                self._settle(made, status, stat.S_IMODE(status.st_mode) & 0o777)
            finally:
                os.close(made)
        finally:
            os.close(inner)

    def _content(self, source: int, target: int, status: os.stat_result) -> None:
        if status.st_size == 0:
            return
        if self._reflink:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                return
            except OSError:
                self._reflink = False
        if status.st_size <= _SMALL_BYTES:
            content = os.read(source, _SMALL_BYTES)
            while content:
                content = content[os.write(target, content) :] or os.read(source, _SMALL_BYTES)
        elif status.st_blocks * 512 < status.st_size:
            copy_sparse(source, target, status.st_size)
        else:
            while os.sendfile(target, source, None, _SEND_BYTES):
                pass

    def _settle(self, descriptor: int, status: os.stat_result, mode: int) -> None:
        if self.uid is not None and self.gid is not None:
            os.fchown(descriptor, self.uid, self.gid)
        os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_sparse(source: int, target: int, size_bytes: int) -> None:
    """Copy only the parts of a file that hold data."""
    position = 0
    while position < size_bytes:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Only a hole is left.
                break
            raise
        end = os.lseek(source, position, os.SEEK_HOLE)
        os.lseek(target, position, os.SEEK_SET)
        while position < end:
            sent = os.sendfile(target, source, position, end - position)
            if sent == 0:
                return
            position += sent
    os.ftruncate(target, size_bytes)
