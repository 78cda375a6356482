"""File work with the agent's rights: stat, read, edit, write."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.guest import edits
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.replace import PathLocks, make_parents, replace_file
from sandbox.guest.texts import Decoder, Text
from sandbox.wire import MAX_READ_BYTES, Frame, RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    from sandbox.guest.calls import Answer

try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]

CHUNK_BYTES = 256 * 1024
SNIFF_BYTES = 8192
MAX_PATH = 4096
MAX_EDIT_BYTES = 32 * 1024 * 1024
MAX_CONVERTED_BYTES = 8 * 1024 * 1024
"""Of a file whose text is converted for an edit: there are several copies of it meanwhile."""
MAX_SCAN_BYTES = 2 * 1024 * 1024 * 1024
SMALL_BYTES = 64 * 1024
"""Files up to this size are read where the request came in: a thread costs more."""

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)


def kind_of(mode: int) -> str:
    """What a mode says the thing is."""
    return next((name for test, name in _KINDS if test(mode)), "device")


def canonical(cwd: str, path: object) -> str:
    """The path without links and dots; its last parts need not exist.

    Raises:
        Refusal: INVALID_PATH, SYMLINK_LOOP, ACCESS_DENIED.
    """
    if not isinstance(path, str) or not path or "\0" in path or len(path) > MAX_PATH:
        raise Refusal(RefusalCode.INVALID_PATH, f"the path is empty, longer than {MAX_PATH}, or has a NUL character")
    try:
        joined = os.path.join(cwd, os.fsdecode(os.fsencode(path)))
    except UnicodeError:
        raise Refusal(RefusalCode.INVALID_PATH, "the path has characters that no file name can hold") from None
    try:
        return os.path.realpath(joined, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.realpath(joined)
    except OSError as error:
        raise from_os_error(error, path) from None


def version_of(status: os.stat_result, digest: str) -> dict[str, Any]:
    """A file's version for the link."""
    return {
        "dev": status.st_dev,
        "ino": status.st_ino,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "sha256": digest,
    }


@contextmanager
def opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file, open for reading, never through a link put in its place meanwhile.

    Raises:
        Refusal: it is something else, or cannot be opened.
    """
    try:
        _check_regular(path, os.stat(path, follow_symlinks=False).st_mode)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, path) from None
    try:
        status = os.fstat(fd)
        _check_regular(path, status.st_mode)
        yield fd, status
    finally:
        os.close(fd)


def _check_regular(path: str, mode: int) -> None:
    kind = kind_of(mode)
    if kind == "directory":
        raise Refusal(RefusalCode.IS_DIRECTORY, f"{path} is a directory")
    if stat.S_ISLNK(mode):
        raise Refusal(RefusalCode.SYMLINK_LOOP, f"{path} became a link meanwhile")
    if kind != "file":
        raise Refusal(RefusalCode.NOT_REGULAR, f"{path} is a {kind}, not a file")


def check_text(path: str, data: bytes) -> None:
    """Refuse bytes that are not text (a NUL among them)."""
    if b"\0" in data:
        raise Refusal(RefusalCode.BINARY_FILE, f"{path} is a binary file")


class Files:
    """File operations; each may run in any thread."""

    def __init__(self) -> None:
        self._locks = PathLocks()

    def stat(self, cwd: str, frame: Frame) -> Answer:
        """What lies at the path."""
        path = canonical(cwd, frame.head["path"])
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return {"path": path, "kind": "missing", "size": 0, "version": None}, b""
        except OSError as error:
            raise from_os_error(error, path) from None
        head = {"path": path, "kind": kind_of(status.st_mode), "size": status.st_size}
        return {**head, "version": version_of(status, "")}, b""

    def read_small(self, cwd: str, frame: Frame) -> Answer | None:
        """Lines of the file if it is a small one."""
        return self._read(cwd, frame, is_small=True)

    def read(self, cwd: str, frame: Frame) -> Answer:
        """Lines of the file."""
        answer = self._read(cwd, frame)
        assert answer is not None
        return answer

    def _read(self, cwd: str, frame: Frame, *, is_small: bool = False) -> Answer | None:
        head = frame.head
        path = canonical(cwd, head["path"])
        first, limit = int(head["offset"]), int(head["limit"])
        if not 1 <= first <= MAX_SCAN_BYTES or not 1 <= limit <= MAX_SCAN_BYTES:
            raise Refusal(RefusalCode.INVALID_PARAM, f"offset and limit count from 1 to {MAX_SCAN_BYTES}")
        with opened(path) as (fd, status):
            # What the kernel makes up while it is read has no size, and may keep a reader waiting.
            if is_small and not 0 < status.st_size <= SMALL_BYTES:
                return None
            if status.st_size > MAX_SCAN_BYTES:
                raise Refusal(RefusalCode.TOO_LARGE, f"{path} has {status.st_size} bytes")
            window = Window(first, limit, min(max(1, int(head["max_bytes"])), MAX_READ_BYTES))
            digest, encoding = _scan(path, fd, window)
        text, line_cut = window.text()
        check_text(path, text)
        lines = text.count(b"\n") + (text != b"" and not text.endswith(b"\n"))
        last = first + lines - 1
        total = window.total_lines
        answer = {
            "path": path,
            "version": version_of(status, digest),
            "first_line": first,
            "last_line": last,
            "total_lines": total,
            "partial": last < total or line_cut,
            "line_cut": line_cut,
            "encoding": encoding,
        }
        return answer, text

    def edit(self, cwd: str, frame: Frame) -> Answer:
        """Replacements in the file."""
        path = canonical(cwd, frame.head["path"])
        wanted = edits.parse(frame.body)
        with self._locks.held(path), opened(path) as (fd, status):
            if status.st_size > MAX_EDIT_BYTES:
                raise Refusal(
                    RefusalCode.TOO_LARGE, f"{path} has {status.st_size} bytes, an edit takes up to {MAX_EDIT_BYTES}"
                )
            content = _read_all(fd)
            _check_expected(path, frame.head["expected"], status, sha256(content).hexdigest())
            text = Text(path, content)
            if text.encoding.startswith("utf-16") and len(content) > MAX_CONVERTED_BYTES:
                words = f"{path} has {len(content)} bytes of {text.encoding} text, an edit takes up to"
                raise Refusal(RefusalCode.TOO_LARGE, f"{words} {MAX_CONVERTED_BYTES}")
            check_text(path, text.utf8[:SNIFF_BYTES])
            spans = edits.plan(text.utf8, wanted)
            changed = text.back(edits.apply(text.utf8, spans))
            after = replace_file(path, changed, status)
        diff, diff_cut = edits.unified(text.utf8, spans)
        answer = {
            "path": path,
            "version": version_of(after, sha256(changed).hexdigest()),
            "replacements": len(spans),
            "diff_cut": diff_cut,
            "other_names": status.st_nlink - 1,
        }
        return answer, diff

    def write(self, cwd: str, frame: Frame) -> Answer:
        """The whole file."""
        head, content = frame.head, frame.body
        path = canonical(cwd, head["path"])
        with self._locks.held(path):
            before = self._before_write(path, head["expected"])
            if before is not None and head["must_be_new"]:
                raise Refusal(RefusalCode.EXISTS, f"{path} exists already")
            if before is None:
                make_parents(path)
            after = replace_file(path, content, before)
        answer = {
            "path": path,
            "version": version_of(after, sha256(content).hexdigest()),
            "created": before is None,
            "bytes": len(content),
            "other_names": 0 if before is None else before.st_nlink - 1,
        }
        return answer, b""

    def _before_write(self, path: str, expected: dict[str, Any] | None) -> os.stat_result | None:
        """The state of the file to be replaced; None when there is none."""
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            if expected is not None:
                raise Refusal(RefusalCode.CONFLICT, f"{path} is gone since it was read") from None
            return None
        except OSError as error:
            raise from_os_error(error, path) from None
        _check_regular(path, status.st_mode)
        if expected is not None:
            with opened(path) as (fd, status):
                _check_expected(path, expected, status, _scan_digest(fd))
        return status


def _check_expected(path: str, expected: dict[str, Any] | None, status: os.stat_result, digest: str) -> None:
    if expected is None:
        return
    wanted = expected.get("sha256")
    same = wanted == digest if wanted else version_of(status, "") == {**expected, "sha256": ""}
    if not same:
        raise Refusal(RefusalCode.CONFLICT, f"{path} changed since it was read")


class Window:
    """The lines wanted of a file that passes by in chunks."""

    def __init__(self, first: int, limit: int, max_bytes: int) -> None:
        self._first = first
        self._limit = limit
        self._max_bytes = max_bytes
        self._taken = bytearray()
        self._newlines = 0
        self._last = b"\n"
        self._full = False

    @property
    def total_lines(self) -> int:
        """Lines that passed; one without a newline at the end counts."""
        return self._newlines + (self._last != b"\n")

    def add(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        newlines = chunk.count(b"\n")
        line = self._newlines + 1
        self._newlines += newlines
        self._last = chunk[-1:]
        if self._full or line + newlines < self._first:
            return
        start = 0
        while line < self._first:
            start = chunk.find(b"\n", start) + 1
            line += 1
        self._taken += chunk[start:]
        self._full = len(self._taken) > self._max_bytes or self._newlines >= self._first - 1 + self._limit

    def text(self) -> tuple[bytes, bool]:
        """The lines, and whether the only one is cut."""
        taken = self._taken
        end = 0
        for _ in range(self._limit):
            end = taken.find(b"\n", end) + 1
            if end == 0:
                end = len(taken)
                break
        if end <= self._max_bytes:
            return bytes(taken[:end]), False
        whole = taken.rfind(b"\n", 0, self._max_bytes) + 1
        return bytes(taken[: whole or self._max_bytes]), whole == 0


def _scan(path: str, fd: int, window: Window) -> tuple[str, str]:
    """Pass the file's text through the window; its digest, and the encoding that its mark names."""
    digest = sha256()
    decoder = Decoder(path)
    is_start = True
    while chunk := os.read(fd, CHUNK_BYTES):
        digest.update(chunk)
        text = decoder.add(chunk)
        if is_start:
            check_text(path, text[:SNIFF_BYTES])
            is_start = False
        window.add(text)
    decoder.add(b"", is_last=True)
    return str(digest.hexdigest()), decoder.encoding or ""


def _scan_digest(fd: int) -> str:
    digest = sha256()
    while chunk := os.read(fd, CHUNK_BYTES):
        digest.update(chunk)
    return str(digest.hexdigest())


def _read_all(fd: int) -> bytes:
    chunks = []
    size = 0
    while chunk := os.read(fd, CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_EDIT_BYTES:
            raise Refusal(RefusalCode.TOO_LARGE, f"an edit takes up to {MAX_EDIT_BYTES} bytes")
    return b"".join(chunks)
