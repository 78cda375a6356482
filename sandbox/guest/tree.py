"""Run as a command in the box, as the agent: a file or directory goes out as a tar, or comes in as one.

Arguments: `pack PATH` writes a tar whose names begin with the path's own name; `unpack PATH` reads one, into a
directory that is there or under a new name. Not part of the guest. What it says on standard error is one line.
"""

from __future__ import annotations

import _weakref
import os
import stat
import sys

# A plain tar needs neither, and each would bring a library into every box.
sys.modules.setdefault("bz2", None)  # type: ignore[arg-type]
sys.modules.setdefault("lzma", None)  # type: ignore[arg-type]
# Copying looks for the type of a reference only.
sys.modules.setdefault("weakref", _weakref)
import tarfile  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

COPY_BYTES = 1024 * 1024


class Unusable(Exception):
    """What was asked for is not done; the message says why."""


def pack(path: str, target: IO[bytes]) -> int:
    """Write a tar; how many sockets, pipes and devices were left out."""
    path = os.path.realpath(path)
    left_out = 0

    def kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal left_out
        if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            left_out += 1
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.add(path, os.path.basename(path) or "root", filter=kept)
    return left_out


def unpack(path: str, source: IO[bytes]) -> None:
    """Read a tar of one file or directory into a directory, or under a new name."""
    above, name = (path, "") if os.path.isdir(path) else os.path.split(os.path.abspath(path))
    if not os.path.isdir(above):
        raise Unusable(f"{above} is no directory of the box")
    with tarfile.open(fileobj=source, mode="r|") as tar:
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts or ".." in parts or member.name.startswith("/"):
                raise Unusable(f"{member.name!r} is no name of a file")
            place(tar, member, os.path.join(above, name or parts[0], *parts[1:]))


def place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Make one entry, in place of a file or link that is there."""
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        return
    if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.isreg():
        content = tar.extractfile(member)
        fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if member.mode & 0o100 else 0o644
        )
        with os.fdopen(fd, "wb") as file:
            while content is not None and (piece := content.read(COPY_BYTES)):
                file.write(piece)
        os.utime(path, (member.mtime, member.mtime))
    else:
        raise Unusable(f"{member.name!r} is neither file, directory nor link")


def main() -> None:
    """argv: `pack` or `unpack`, and a path."""
    what, path = sys.argv[1:3]
    try:
        if what == "pack":
            left_out = pack(path, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            if left_out:
                print(f"left out: {left_out} sockets, pipes or devices", file=sys.stderr)
        else:
            unpack(path, sys.stdin.buffer)
    except OSError as error:
        sys.exit(f"{error.filename or path}: {error.strerror or error}")
    except (Unusable, tarfile.TarError, RecursionError) as error:
        sys.exit(f"{path}: {error}")


if __name__ == "__main__":
    main()
