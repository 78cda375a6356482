"""A file or directory as a tar, read from a tree whose content is not trusted: volume → **tree** → terminal, HTTP.

One component at a time, never through a link; what is neither file, directory nor link is left out.
"""

import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH = 100
PIECE_BYTES = 1024 * 1024
BLOCK_BYTES = tarfile.BLOCKSIZE


class TreeRefused(Exception):
    """The tree is not packed; the message says why."""


@dataclass(frozen=True)
class TreeBounds:
    """What a tree may be at most."""

    total_bytes: int = 4 * 1024**3
    entries: int = 500_000


ALL = TreeBounds()


@dataclass(frozen=True)
class _Entry:
    path: str
    """In the tar."""
    parent: int
    """Descriptor of its directory, open until the next entry is asked for."""
    name: str
    status: os.stat_result


def check_tree(parent: int, name: str, bounds: TreeBounds) -> None:
    """Come back if a tree may be packed.

    Raises:
        TreeRefused: it is larger than the bounds, nested too deeply, or not there.
    """
    total_bytes = entries = 0
    for entry in _walk(parent, name, name, 0):
        entries += 1
        total_bytes += entry.status.st_size if stat.S_ISREG(entry.status.st_mode) else 0
        if entries > bounds.entries:
            raise TreeRefused(f"it has more than {bounds.entries} entries")
        if total_bytes > bounds.total_bytes:
            raise TreeRefused(f"it holds more than {bounds.total_bytes // 1024**2} MiB")
    if not entries:
        raise TreeRefused("there is no such file or directory")


def tar_pieces(parent: int, name: str, shown: str, bounds: TreeBounds = ALL) -> Iterator[bytes]:
    """Yield a tar of the file or directory `name` below a directory; its names begin with `shown`.

    What vanishes meanwhile is left out; a file that shrinks is filled up with zeros, one that grows is cut off.

    Raises:
        TreeRefused: it is nested too deeply, or has grown beyond the bounds since it was checked.
        OSError: it cannot be read.
    """
    left_bytes, left_entries = bounds.total_bytes, bounds.entries
    for entry in _walk(parent, name, shown, 0):
        left_bytes -= entry.status.st_size if stat.S_ISREG(entry.status.st_mode) else 0
        left_entries -= 1
        if left_bytes < 0 or left_entries < 0:
            raise TreeRefused("it has grown too large while it was packed")
        yield from _entry_pieces(entry)
    yield bytes(2 * BLOCK_BYTES)


def _walk(parent: int, name: str, path: str, depth: int) -> Iterator[_Entry]:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    yield _Entry(path, parent, name, status)
    if not stat.S_ISDIR(status.st_mode):
        return
    if depth >= MAX_DEPTH:
        raise TreeRefused(f"it is nested deeper than {MAX_DEPTH} directories")
    try:
        directory = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        with os.scandir(directory) as found:
            names = sorted(each.name for each in found)
        for inner in names:
            yield from _walk(directory, inner, f"{path}/{inner}", depth + 1)
    finally:
        os.close(directory)


def _entry_pieces(entry: _Entry) -> Iterator[bytes]:
    info = tarfile.TarInfo(entry.path)
    info.mtime = int(entry.status.st_mtime)
    mode = entry.status.st_mode
    info.mode = 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644
    if stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
        yield _header(info)
    elif stat.S_ISLNK(mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(entry.name, dir_fd=entry.parent)
        yield _header(info)
    elif stat.S_ISREG(mode):
        yield from _file_pieces(entry, info)


def _file_pieces(entry: _Entry, info: tarfile.TarInfo) -> Iterator[bytes]:
    try:
        descriptor = os.open(entry.name, OPEN_FILE, dir_fd=entry.parent)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        info.size = min(status.st_size, entry.status.st_size)
        yield _header(info)
        left_bytes = info.size
        while left_bytes:
            piece = file.read(min(left_bytes, PIECE_BYTES)) or bytes(min(left_bytes, PIECE_BYTES))
            left_bytes -= len(piece)
            yield piece
    yield bytes(-info.size % BLOCK_BYTES)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
