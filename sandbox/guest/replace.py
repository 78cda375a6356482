"""Puts new content in a file's place: whole or not at all."""

import _thread
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.wire import RefusalCode

_MOUNTED = (errno.EBUSY, errno.EXDEV)


class PathLocks:
    """One lock for each path in use."""

    def __init__(self) -> None:
        self._guard = _thread.allocate_lock()
        self._locks: dict[str, tuple[_thread.LockType, int]] = {}

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        """Alone with the path."""
        with self._guard:
            lock, users = self._locks.get(path) or (_thread.allocate_lock(), 0)
            self._locks[path] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                users = self._locks[path][1] - 1
                if users:
                    self._locks[path] = lock, users
                else:
                    del self._locks[path]


def make_parents(path: str) -> None:
    """Make the directories above the path.

    Raises:
        Refusal: one cannot be made.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError as error:
        raise Refusal(RefusalCode.NOT_DIRECTORY, f"{error.filename} is not a directory") from None
    except OSError as error:
        raise from_os_error(error, os.path.dirname(path)) from None


def replace_file(path: str, content: bytes, before: os.stat_result | None) -> os.stat_result:
    """The state of the file after the content took its place, with the mode it had.

    A draft is written beside it, brought to disk and renamed over it, if the file is still what `before` says
    (None: is still missing). Between that look and the rename a foreign writer remains possible. Other names of the
    file (hard links) keep what was in it: writing into it could leave half of either.

    Raises:
        Refusal: CONFLICT, or it cannot be written; the file is as it was.
    """
    # A random name: one that a box which was killed left behind must not be in the way.
    draft = os.path.join(os.path.dirname(path), f".sandhog-{os.urandom(8).hex()}.tmp")
    try:
        if before is not None:
            _check_writable(path)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise from_os_error(error, path) from None
    try:
        _write_all(fd, content)
        if before is not None:
            _keep_rights(fd, before)
        os.fsync(fd)
        _check_unchanged(path, before)
        os.rename(draft, path)
        return os.fstat(fd)
    except OSError as error:
        _unlink(draft)
        if error.errno in _MOUNTED:
            words = f"{path} is mounted by itself and cannot be replaced as a whole; write into it with Bash"
            raise Refusal(RefusalCode.ACCESS_DENIED, words) from None
        raise from_os_error(error, path) from None
    except Refusal:
        _unlink(draft)
        raise
    finally:
        os.close(fd)


def _check_writable(path: str) -> None:
    """Raise unless the file itself may be written: renaming asks its directory only.

    Raises:
        OSError: it may not.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        # A program that runs can be replaced, only not be written into.
        if error.errno != errno.ETXTBSY:
            raise


def _keep_rights(fd: int, before: os.stat_result) -> None:
    if os.geteuid() == 0:
        with suppress(OSError):
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _check_unchanged(path: str, before: os.stat_result | None) -> None:
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        if before is None:
            return
        raise Refusal(RefusalCode.CONFLICT, f"{path} was removed meanwhile") from None
    if before is None or _identity(now) != _identity(before):
        raise Refusal(RefusalCode.CONFLICT, f"{path} was changed meanwhile")


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
