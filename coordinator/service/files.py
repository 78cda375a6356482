"""Read a file of a session's workspace, whatever a model has left there: HTTP → **files** → volume.

No link is followed, no path leads out: each part of it is opened below the one before it.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from coordinator.service.refusals import Code, Refused

MAX_ENTRIES = 1_000
MAX_DEPTH = 100


@dataclass(frozen=True)
class Listing:
    """What a directory holds."""

    names: tuple[str, ...]
    """Sorted; those of directories end in `/`, and U+FFFD stands for what is not UTF-8."""
    is_cut: bool
    """There are more."""


def read(root: Path, path: str, max_bytes: int) -> bytes | Listing:
    """Return a file's content, or a directory's listing; "" is the workspace itself.

    Raises:
        Refused: there is none, it is no plain file or directory, or it is too large.
        OSError: the volume cannot be read.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path or len(parts) > MAX_DEPTH or path.startswith("/"):
        raise Refused(Code.INVALID, f"{path[:200]!r} is no path below the workspace.")
    missing = Refused(Code.NOT_FOUND, f"There is no file {path[:200]!r} in the workspace; links are not followed.")
    descriptor = _open_root(root)
    try:
        for number, part in enumerate(parts):
            # Not blocking: a FIFO with nobody at its other end would be waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            flags |= os.O_DIRECTORY if number < len(parts) - 1 else 0
            try:
                inner = os.open(part, flags, dir_fd=descriptor)
            except OSError:
                raise missing from None
            os.close(descriptor)
            descriptor = inner
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            return _listing(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise missing
        if facts.st_size > max_bytes:
            words = f"{path[:200]!r} has {facts.st_size} bytes; {max_bytes} can be fetched."
            raise Refused(Code.TOO_LARGE, words, "SANDHOG_MAX_FILE_BYTES is the bound.")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(max_bytes)
    finally:
        os.close(descriptor)


def _open_root(root: Path) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        fix = "A private copy is there from the session's first call to its end; GET …/patch has what it changed."
        raise Refused(Code.NOT_FOUND, "The session's workspace is not there now.", fix) from None


def _listing(descriptor: int) -> Listing:
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if len(names) == MAX_ENTRIES:
                return Listing(tuple(sorted(names)), is_cut=True)
            # Names are bytes to the volume; what is not UTF-8 of one can only be shown.
            shown = os.fsencode(entry.name).decode("utf-8", "replace")
            names.append(shown + ("/" if entry.is_dir(follow_symlinks=False) else ""))
    return Listing(tuple(sorted(names)), is_cut=False)
