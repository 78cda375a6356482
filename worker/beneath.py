"""Reaching files below a directory whose content is not trusted: one component at a time, never through a link.

A tree that the model wrote may hold planted links, FIFOs, odd names and endless nesting. Everything here works on
directory descriptors, so no name below the root can lead out of it.
"""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CHUNK_BYTES = 1 << 20

FILE_MODE = 0o100644
EXECUTABLE_MODE = 0o100755
LINK_MODE = 0o120000


def git_mode(status: os.stat_result) -> int | None:
    """Return the mode that git would record (file, executable or link); None for everything else."""
    if stat.S_ISLNK(status.st_mode):
        return LINK_MODE
    if stat.S_ISREG(status.st_mode):
        return EXECUTABLE_MODE if status.st_mode & stat.S_IXUSR else FILE_MODE
    return None


class Tree:
    """A directory held open, for reading below it. Used by one thread, closed by `with`."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, OPEN_DIRECTORY)
        self._parent = self._root
        self._parent_path = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forget_parent()
        os.close(self._root)

    def parent(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the path's directory, good until the next call, and the last component.

        Raises:
            OSError: a component is missing, a link, or no directory.
        """
        directory, _, name = path.rpartition("/")
        if directory != self._parent_path:
            self._forget_parent()
            if directory:
                self._parent = open_beneath(self._root, directory)
                self._parent_path = directory
        return self._parent, name

    def status(self, path: str) -> os.stat_result | None:
        """Return the path's own status; None where nothing is, or where a parent is missing, a link or a file."""
        try:
            parent, name = self.parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield the content of a regular file, or the target of a link, in pieces of at most 1 MiB.

        Raises:
            OSError: the path is missing or cannot be read, or is neither file nor link.
        """
        parent, name = self.parent(path)
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            yield os.fsencode(os.readlink(name, dir_fd=parent))
            return
        if not stat.S_ISREG(mode):
            raise OSError(f"{path!r} is neither a file nor a link")
        descriptor = os.open(name, OPEN_FILE, dir_fd=parent)
        try:
            while chunk := os.read(descriptor, CHUNK_BYTES):
                yield chunk
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        """Return all of `chunks`."""
        return b"".join(self.chunks(path))

    def digest(self, path: str) -> str:
        """Return the SHA-256 (hex) of `chunks`."""
        digest = hashlib.sha256()
        for chunk in self.chunks(path):
            digest.update(chunk)
        return digest.hexdigest()

    def _forget_parent(self) -> None:
        if self._parent != self._root:
            os.close(self._parent)
        self._parent, self._parent_path = self._root, ""


def open_beneath(root: int, directory: str) -> int:
    """Open a directory below another one by its relative path ("" is the root); the caller closes the descriptor.

    Raises:
        OSError: a component is missing, a link, or no directory.
    """
    current = os.dup(root)
    try:
        for name in directory.split("/") if directory else ():
            following = os.open(name, OPEN_DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
    except OSError:
        os.close(current)
        raise
    return current


def change_mode(name: str, parent: int | None, change_bits: int, clear_bits: int = 0, kind: int | None = None) -> bool:
    """Set and clear permission bits of what stands at a name, not of what a link there points to.

    Returns:
        Whether the bits changed; False also where the file is not of `kind` (an `S_IFMT` value).

    Raises:
        OSError: the name is missing, or the file belongs to somebody else.
    """
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        wanted = (stat.S_IMODE(mode) | change_bits) & ~clear_bits
        if stat.S_ISLNK(mode) or wanted == stat.S_IMODE(mode) or kind not in (None, stat.S_IFMT(mode)):
            return False
        # The kernel refuses fchmod on an O_PATH descriptor; its /proc name leads to this very file.
        os.chmod(f"/proc/self/fd/{descriptor}", wanted)  # noqa: PTH101
        return True
    finally:
        os.close(descriptor)


def write_durably(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file anew under its name, whole or not at all, for the owner of its directory only.

    Raises:
        OSError: the file system is full or gone; an older file of that name is unchanged.
    """
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_tree(path: Path) -> None:
    """Remove a directory and all below it, however deep and whatever its modes. Idempotent.

    It first moves to `<path>.trash`, so that a half-removed tree never stands under its name. There every directory
    met moves up beside its tree, so neither a stack nor descriptors grow with the depth.

    Raises:
        OSError: something could not be removed; the rest stays in `<path>.trash` for the next attempt.
    """
    trash = path.with_name(f"{path.name}.trash")
    if not os.path.lexists(path) and not os.path.lexists(trash):
        return
    with contextlib.suppress(FileExistsError):
        trash.mkdir(mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        change_mode(str(path), None, stat.S_IRWXU)
        path.rename(trash / secrets.token_hex(8))
    top = os.open(trash, OPEN_DIRECTORY)
    try:
        with os.scandir(top) as entries:
            pending = [entry.name for entry in entries]
        while pending:
            pending += _remove_one(top, pending.pop())
    finally:
        os.close(top)
    trash.rmdir()


def _remove_one(top: int, name: str) -> list[str]:
    """Remove one directory of the trash; its subdirectories move into the trash: return their new names."""
    directory = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    moved = []
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in found:
            if is_directory:
                change_mode(inner, directory, stat.S_IRWXU)
                moved.append(secrets.token_hex(8))
                os.rename(inner, moved[-1], src_dir_fd=directory, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)
    return moved
