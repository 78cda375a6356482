"""Files as file systems: loop devices and mounts, by the kernel's own calls. Needs root and `/dev/loop-control`.

Of one file there is never more than one device, whoever asks: two would be two caches of the same blocks.
Source: loop(4), mount(2), linux/loop.h.
"""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = Path("/dev/loop-control")
ATTEMPTS = 50
"""Others may take the free device that was named to us."""

_GET_FREE, _CONFIGURE, _GET_STATUS = 0x4C82, 0x4C0A, 0x4C05
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
"""struct loop_info64: device and inode of the file first, flags last of the numbers."""
_CONFIG_RESERVED = bytes(64)
_AUTOCLEAR = 4
_NOSUID, _NODEV, _BIND = 2, 4, 4096
_DETACH, _NOFOLLOW = 2, 8


def mount_file(image: Path, target: Path) -> None:
    """Mount the ext4 file system that a file holds; its device goes with its last mount.

    Raises:
        OSError: no device or mount can be had.
    """
    with _device(image) as device:
        # What is deleted inside gives its room back to the file's own disk.
        _mount(device, target, b"ext4", _NOSUID | _NODEV, b"discard")


def mount_again(source: Path, target: Path) -> None:
    """Show the mount at `source` at `target` too.

    Raises:
        OSError: it cannot be.
    """
    _mount(os.fspath(source), target, None, _BIND, None)


def unmount(target: Path) -> None:
    """Take the mount away, also under processes that work in it; nothing happens where there is none.

    Raises:
        OSError: it cannot be.
    """
    if _libc().umount2(os.fsencode(target), _DETACH | _NOFOLLOW) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, os.strerror(number), os.fspath(target))


def is_mounted(target: Path) -> bool:
    """Whether something is mounted at this directory."""
    try:
        return target.lstat().st_dev != target.parent.lstat().st_dev
    except OSError:
        return False


def file_system_of(path: Path) -> str:
    """Return the kind of file system that a path lies on, as the kernel names it; "" if it cannot be told."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        words, _, rest = line.partition(" - ")
        place = words.split()[4]
        if os.path.commonpath([place, real]) == place and len(place) >= len(best):
            best, kind = place, rest.split()[0]
    return kind


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: Path, kind: bytes | None, flags: int, data: bytes | None) -> None:
    if _libc().mount(source.encode(), os.fsencode(target), kind, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(target))


@contextmanager
def _device(image: Path) -> Iterator[str]:
    """The file's loop device, open, since one that nobody has open or mounted goes away."""
    file = os.open(image, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        name, device = _attached(os.fstat(file)) or _attach(file)
        try:
            yield name
        finally:
            os.close(device)
    finally:
        os.close(file)


def _attached(wanted: os.stat_result) -> tuple[str, int] | None:
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        name = f"/dev/{entry.parts[3]}"
        with suppress(OSError):
            device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            info = bytearray(_INFO.size)
            try:
                fcntl.ioctl(device, _GET_STATUS, info)
            except OSError:
                os.close(device)
                continue
            if _INFO.unpack(info)[:2] == (wanted.st_dev, wanted.st_ino):
                return name, device
            os.close(device)
    return None


def _attach(file: int) -> tuple[str, int]:
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"sandhog", b"", b"", 0, 0)
    config = struct.pack("=II", file, 0) + info + _CONFIG_RESERVED
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(ATTEMPTS):
            name = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return name, device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "every loop device was taken by others", str(CONTROL))
