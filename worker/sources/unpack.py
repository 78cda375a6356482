"""Unpacks an archive that nobody vouches for: one entry at a time, below one directory, through no link.

Runs in a confined child. Whatever would leave the directory, or is neither file, directory nor link, refuses the whole
archive by name: a half-understood archive is not the workspace that its owner meant. Only in the files of an image do
links that lead elsewhere belong to it: they mean the image's own files, which the box has.
"""

import bz2
import calendar
import contextlib
import errno
import gzip
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from worker.beneath import OPEN_DIRECTORY
from worker.sources.jobs import Bounds

MAX_DEPTH = 100
MAX_LINK_BYTES = 4_096
PIECE_BYTES = 1024 * 1024
SLACK_BYTES = 64 * 1024 * 1024
"""What headers and padding of a tar may be beside its files."""
_UNFIT = frozenset((None, errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ))
"""Of errors that the archive is at fault for, not the disk: a broken stream or place in it, a name that cannot be."""


class ArchiveRefused(Exception):
    """The archive is not unpacked; the message says why."""


@dataclass
class _Tree:
    """The directory that is filled, with what it holds so far."""

    root: int
    bounds: Bounds
    keeps_links: bool = False
    entries: int = 0
    total_bytes: int = 0
    _parent: tuple[str, int] | None = field(default=None, init=False)

    def close(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
        os.close(self.root)

    def directory(self, path: str) -> None:
        """Make a directory and those above it."""
        self._count(path)
        self._open(path)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link that stays inside, or any where links are kept."""
        self._count(path)
        is_link = 0 < len(os.fsencode(target)) <= MAX_LINK_BYTES
        if not is_link or not (self.keeps_links or _stays_inside(path, target)):
            raise ArchiveRefused(f"its link {_shown(path)} leads to {_shown(target)}, out of the archive")
        parent, name = self._place(path)
        os.symlink(target, name, dir_fd=parent)

    def file(self, path: str, content: IO[bytes], *, is_executable: bool, mtime: float) -> None:
        """Make a file."""
        self._count(path)
        parent, name = self._place(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o755 if is_executable else 0o644, dir_fd=parent)
        with os.fdopen(descriptor, "wb") as target:
            while piece := content.read(PIECE_BYTES):
                self.total_bytes += len(piece)
                if self.total_bytes > self.bounds.total_bytes:
                    raise ArchiveRefused(f"it holds more than {self.bounds.total_bytes // 1024**2} MiB")
                target.write(piece)
            target.flush()
            seconds = min(max(mtime, 0.0), 2.0**33)
            os.utime(target.fileno(), (seconds, seconds))

    def hard_link(self, path: str, earlier: str) -> None:
        """Make a file that has the content of an earlier one."""
        parent, name = self._place(earlier, makes_room=False)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError as exc:
            raise ArchiveRefused(f"{_shown(path)} is a link to {_shown(earlier)}, which is no file before it") from exc
        with os.fdopen(descriptor, "rb") as content:
            status = os.fstat(content.fileno())
            if not stat.S_ISREG(status.st_mode) or path == earlier:
                raise ArchiveRefused(f"{_shown(path)} is a link to {_shown(earlier)}, which is no file before it")
            self.file(path, content, is_executable=bool(status.st_mode & 0o100), mtime=status.st_mtime)

    def _count(self, path: str) -> None:
        self.entries += 1
        if self.entries > self.bounds.entries:
            raise ArchiveRefused(f"it has more than {self.bounds.entries} entries")
        if path.count("/") >= MAX_DEPTH:
            raise ArchiveRefused(f"it is nested deeper than {MAX_DEPTH} directories")

    def _place(self, path: str, *, makes_room: bool = True) -> tuple[int, str]:
        """Return the directory of a path, made where it is missing, and the name in it, free of an earlier file."""
        above, _, name = path.rpartition("/")
        parent = self._open(above)
        if makes_room:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
        return parent, name

    def _open(self, path: str) -> int:
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        current = os.dup(self.root)
        for name in path.split("/") if path else ():
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
                following = os.open(name, OPEN_DIRECTORY, dir_fd=current)
            finally:
                os.close(current)
            current = following
        if self._parent is not None:
            os.close(self._parent[1])
        self._parent = (path, current)
        return current


class _Counted:
    """A decompressed stream that ends in an error beyond a bound, so that no header can fill the memory."""

    def __init__(self, stream: IO[bytes], most_bytes: int) -> None:
        self._stream = stream
        self._left_bytes = most_bytes

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(min(size, PIECE_BYTES) if size > 0 else PIECE_BYTES)
        self._left_bytes -= len(piece)
        if self._left_bytes < 0:
            raise ArchiveRefused("it unpacks to more than is allowed")
        return piece


_NO_HEADER = (tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError)  # type: ignore[attr-defined]


class _Member(tarfile.TarInfo):
    """An entry of a tar. Behind the first one, the library takes a header that cannot be read for the archive's end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except _NO_HEADER as exc:
            raise tarfile.ReadError(str(exc)) from exc


def unpack(descriptor: int, root: Path, bounds: Bounds, *, keeps_links: bool = False) -> None:
    """Unpack an archive into an empty directory.

    Args:
        descriptor: The archive; any of tar, with gzip, bzip2 or xz, and zip, told by content.
        root: Where.
        bounds: What it may be.
        keeps_links: Take links that lead out of it as they are; nothing is ever reached through them.

    Raises:
        ArchiveRefused: it is none of these, is broken, too large, or would leave the directory.
        OSError: the disk is full.
    """
    tree = _Tree(os.open(root, OPEN_DIRECTORY), bounds, keeps_links)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as archive:
            beginning = archive.read(8)
            archive.seek(0)
            if beginning.startswith(b"PK"):
                _unpack_zip(archive, tree)
            else:
                _unpack_tar(_decompressed(archive, beginning), tree)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, NotImplementedError, RuntimeError) as exc:
        raise ArchiveRefused(f"it cannot be read: {exc}") from exc
    except (gzip.BadGzipFile, zlib.error, UnicodeError, ValueError, OverflowError, IndexError) as exc:
        raise ArchiveRefused(f"it is broken: {exc}") from exc
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as exc:
        raise ArchiveRefused(f"two of its entries stand at one place: {exc.filename!r}") from exc
    except OSError as exc:
        if exc.errno not in _UNFIT:
            raise
        where = f": {_shown(exc.filename)}" if isinstance(exc.filename, str) else ""
        raise ArchiveRefused(f"it is broken: {exc.strerror or exc}{where}") from exc
    finally:
        tree.close()


def unpack_named(stream: IO[bytes], directory: int, name: str, bounds: Bounds) -> None:
    """Read a plain tar of one file or directory, and put it into a directory under a name, over what is there.

    Links that lead out of it are refused, and what is in its way: a link, or a directory where a file is to be.

    Args:
        stream: The tar; its own names begin with one that does not matter.
        directory: Its descriptor, which stays open.
        name: Of the file or directory there; whoever sends the tar has no say in it.
        bounds: What it may be.

    Raises:
        ArchiveRefused: it is broken, too large, or would leave its place; what came before is there.
        OSError: the disk is full, or does not let us.
    """
    counted: Any = _Counted(stream, bounds.total_bytes + SLACK_BYTES + 1_024 * bounds.entries)
    tree: _Tree | None = None
    try:
        with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Member) as tar:
            first = tar.next()
            if first is None or not (first.isdir() or first.isreg()):
                raise ArchiveRefused("it begins with neither a file nor a directory")
            tree = _Tree(_top(directory, name, first), bounds)
            if first.isreg():
                _unpack_member(tar, first, name, tree)
            for member in tar:
                if member is first:
                    continue
                if first.isreg():
                    raise ArchiveRefused(f"it holds {_shown(member.name)} beside the file that was asked for")
                if member.islnk():
                    member.linkname = member.linkname.partition("/")[2]
                _unpack_member(tar, member, _inside(member.name).partition("/")[2], tree)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError) as exc:
        raise ArchiveRefused(f"it cannot be read: {exc}") from exc
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as exc:
        raise ArchiveRefused(f"something else is in the place of {exc.filename!r}") from exc
    finally:
        if tree is not None:
            tree.close()


def _top(directory: int, name: str, member: tarfile.TarInfo) -> int:
    """Return a descriptor of what the tar is unpacked below: its own directory, or for one file the one it lies in."""
    if not member.isdir():
        return os.dup(directory)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=directory)
    return os.open(name, OPEN_DIRECTORY, dir_fd=directory)


def _decompressed(archive: IO[bytes], beginning: bytes) -> IO[bytes]:
    if beginning.startswith(b"\x1f\x8b"):
        return gzip.open(archive)  # type: ignore[return-value]
    if beginning.startswith(b"BZh"):
        return bz2.open(archive)
    if beginning.startswith(b"\xfd7zXZ\0"):
        return lzma.open(archive)
    return archive


def _unpack_tar(stream: IO[bytes], tree: _Tree) -> None:
    counted: Any = _Counted(stream, tree.bounds.total_bytes + SLACK_BYTES + 1_024 * tree.bounds.entries)
    with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            _unpack_member(tar, member, _inside(member.name), tree)
    while counted.read():
        # What a packer wrote behind its tar: the sum that its content is proven by stands at its end.
        pass


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, tree: _Tree) -> None:
    if member.isdir():
        if path:
            tree.directory(path)
    elif member.issym():
        tree.link(_named(path, member.name), member.linkname)
    elif member.islnk():
        tree.hard_link(_named(path, member.name), _inside(member.linkname))
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        is_executable = bool(member.mode & 0o100)
        tree.file(_named(path, member.name), content, is_executable=is_executable, mtime=member.mtime)
    else:
        raise ArchiveRefused(f"{_shown(member.name)} is a device, a pipe or of another kind that is no file")


def _unpack_zip(archive: IO[bytes], tree: _Tree) -> None:
    with zipfile.ZipFile(archive) as opened:
        for entry in _zip_entries(opened, tree.bounds):
            name = _zip_name(entry)
            path, mode = _inside(name), entry.external_attr >> 16
            if name.endswith("/"):
                if path:
                    tree.directory(path)
            elif stat.S_ISLNK(mode):
                with opened.open(entry) as content:
                    target = content.read(MAX_LINK_BYTES + 1)
                tree.link(_named(path, name), os.fsdecode(target))
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with opened.open(entry) as content:
                    is_executable = bool(mode & 0o100)
                    tree.file(_named(path, name), content, is_executable=is_executable, mtime=_zip_mtime(entry))
            else:
                raise ArchiveRefused(f"{_shown(name)} is a device, a pipe or of another kind that is no file")


def _zip_name(entry: zipfile.ZipInfo) -> str:
    """Return an entry's name; some programs write their own system's separators, as Info-ZIP's `unzip` knows too."""
    is_of_windows = entry.create_system == 0 and "/" not in entry.filename
    return entry.filename.replace("\\", "/") if is_of_windows else entry.filename


def _zip_entries(opened: zipfile.ZipFile, bounds: Bounds) -> Iterator[zipfile.ZipInfo]:
    entries = opened.infolist()
    if len(entries) > bounds.entries:
        raise ArchiveRefused(f"it has more than {bounds.entries} entries")
    for entry in entries:
        if entry.flag_bits & 0x1:
            raise ArchiveRefused(f"{_shown(entry.filename)} is encrypted")
        yield entry


def _zip_mtime(entry: zipfile.ZipInfo) -> float:
    try:
        return float(calendar.timegm((*entry.date_time, 0, 0, 0)))
    except (ValueError, OverflowError):
        return 0.0


def _inside(name: str) -> str:
    """Return an entry's name as a plain relative path; "" for the root itself."""
    if "\0" in name or name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        raise ArchiveRefused(f"{_shown(name)} is an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveRefused(f"{_shown(name)} leads out of the archive")
    return "/".join(parts)


def _named(path: str, name: str) -> str:
    if not path:
        raise ArchiveRefused(f"{_shown(name)} is no name of a file")
    return path


def _stays_inside(path: str, target: str) -> bool:
    if not target or target.startswith("/") or "\0" in target:
        return False
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return joined != ".." and not joined.startswith("../")


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 200 else f"{name[:200]}…")
