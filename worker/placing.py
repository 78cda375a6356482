"""Writing changes into a directory that somebody else may be using: apply → **placing**.

All new content is first written and synced beside its place, in a directory of our own; only then are files deleted
and renamed into place. A full disk therefore shows before anything changed, and a killed process leaves each path
either old or new, which `apply` tells apart.
"""

import errno
import hashlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from worker.beneath import (
    CHUNK_BYTES,
    EXECUTABLE_MODE,
    LINK_MODE,
    OPEN_DIRECTORY,
    change_mode,
    open_beneath,
    remove_tree,
)
from worker.changes import Change, ChangeKind


class Placing:
    """Writes changes into one directory. Used by one thread; `with` removes what was staged and not placed."""

    def __init__(self, result: Path, directory: Path) -> None:
        self._result = result
        owner = hashlib.sha256(os.fsencode(result)).hexdigest()[:12]
        # The same name for each attempt: what a killed one left is found and removed.
        self._stage_path = directory / f".sandhog-apply-{owner}"
        remove_tree(self._stage_path)
        self._root = os.open(directory, OPEN_DIRECTORY)
        try:
            self._stage = self._open_stage()
        except OSError:
            os.close(self._root)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._stage)
        os.close(self._root)
        remove_tree(self._stage_path)

    def put(self, changes: list[Change]) -> None:
        """Make the changes.

        Raises:
            OSError: the disk is full, or something cannot be written; making the same changes again completes them.
        """
        for number, change in enumerate(changes):
            if _brings_content(change):
                self._write(self._stage, str(number), change)
        for change in changes:
            if change.new_mode is None:
                self._delete(change.path)
        for number, change in enumerate(changes):
            if change.new_mode is not None:
                self._place(str(number), change)

    def _open_stage(self) -> int:
        os.mkdir(self._stage_path.name, mode=0o700, dir_fd=self._root)
        stage = os.open(self._stage_path.name, OPEN_DIRECTORY, dir_fd=self._root)
        # Whoever owns the directory could have put one of theirs there: root must not give files away in it.
        if os.fstat(stage).st_uid != os.geteuid():
            os.close(stage)
            raise OSError(f"{self._stage_path} was replaced while it was made")
        return stage

    def _write(self, directory: int, name: str, change: Change) -> None:
        assert change.new_digest is not None
        content = self._result / change.new_digest
        if change.new_mode == LINK_MODE:
            os.symlink(content.read_bytes(), os.fsencode(name), dir_fd=directory)
            return
        mode = 0o777 if change.new_mode == EXECUTABLE_MODE else 0o666
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=directory)
        with content.open("rb") as source, os.fdopen(descriptor, "wb") as target:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())

    def _delete(self, path: str) -> None:
        """Delete a file, and the directories that became empty by it."""
        directory, _, name = path.rpartition("/")
        parent = open_beneath(self._root, directory)
        try:
            os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)
        while directory:
            above, _, name = directory.rpartition("/")
            parent = open_beneath(self._root, above)
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    return
                raise
            finally:
                os.close(parent)
            directory = above

    def _place(self, staged: str, change: Change) -> None:
        directory, _, name = change.path.rpartition("/")
        parent = self._make_parents(directory)
        try:
            current = _status(parent, name)
            if current is not None and stat.S_ISDIR(current.st_mode):
                _remove_empty(parent, name)
                current = None
            if _brings_content(change):
                self._settle(self._stage, staged, parent, change, current)
                self._rename(staged, parent, name, change, current)
            elif current is not None:
                _turn_executable(name, parent, change)
        finally:
            os.close(parent)

    def _rename(self, staged: str, parent: int, name: str, change: Change, current: os.stat_result | None) -> None:
        try:
            os.rename(staged, name, src_dir_fd=self._stage, dst_dir_fd=parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Another file system is mounted below the directory.
            beside = f".sandhog-apply-{secrets.token_hex(6)}"
            self._write(parent, beside, change)
            self._settle(parent, beside, parent, change, current)
            os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _settle(self, directory: int, name: str, parent: int, change: Change, current: os.stat_result | None) -> None:
        """Give a staged file the owner and permissions of the one it replaces, else the owner of its directory."""
        owner = current or os.fstat(parent)
        if os.geteuid() == 0:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)
        if change.new_mode == LINK_MODE or current is None or not stat.S_ISREG(current.st_mode):
            return
        change_mode(name, directory, stat.S_IMODE(current.st_mode) & 0o777, 0o777 & ~current.st_mode)
        _turn_executable(name, directory, change)

    def _make_parents(self, directory: str) -> int:
        """Open a directory below the root, made where it is missing; the caller closes the descriptor."""
        current = os.dup(self._root)
        try:
            for name in directory.split("/") if directory else ():
                owner = os.fstat(current)
                if _status(current, name) is None:
                    os.mkdir(name, dir_fd=current)
                    if os.geteuid() == 0:
                        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=current, follow_symlinks=False)
                following = os.open(name, OPEN_DIRECTORY, dir_fd=current)
                os.close(current)
                current = following
        except OSError:
            os.close(current)
            raise
        return current


def _brings_content(change: Change) -> bool:
    return change.new_mode is not None and change.kind is not ChangeKind.MODE


def _turn_executable(name: str, parent: int, change: Change) -> None:
    """Make a file executable for whoever may read it, or for nobody, if the change says so."""
    if change.new_mode == change.old_mode:
        return
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if change.new_mode == EXECUTABLE_MODE:
        change_mode(name, parent, (status.st_mode & 0o444) >> 2)
    else:
        change_mode(name, parent, 0, 0o111)


def _status(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove_empty(parent: int, name: str) -> None:
    """Remove a directory that holds nothing but empty directories."""
    directory = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
        for inner in names:
            _remove_empty(directory, inner)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)
