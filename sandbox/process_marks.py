"""Which processes of this machine belong to which box without isolation, and to which call of it.

The limit on file locks is inherited, means nothing to Linux, is shown of every process, and needs no rights to lower:
its hard value is the box's number, its soft value the call's marker; our own processes have the number in both.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

LOCKS = 10
"""RLIMIT_LOCKS, which the `resource` module has no name for."""
FIRST_NUMBER = 1 << 61
"""Of a box; every marker of a call is smaller."""
KILL_ROUNDS = 1000


def set_mark(number: int, marker: int | None = None) -> None:
    """Mark this process, and so what it forks, as the box's own or as a call's."""
    resource.setrlimit(LOCKS, (number if marker is None else marker, number))


def processes_of(number: int) -> dict[int, list[int]]:
    """Living processes of a box by their marker; the box's own are under its number."""
    found: dict[int, list[int]] = {}
    for name in (path.name for path in Path("/proc").iterdir()):
        if name[0] in "123456789":
            soft, hard = _locks_of(name)
            if hard == number and not _is_dead(name):
                found.setdefault(soft, []).append(int(name))
    return found


def kill_processes(number: int, *, is_own_spared: bool) -> None:
    """SIGKILL until the box has no process left, or (the calling one must not die first) none but its own."""
    for _ in range(KILL_ROUNDS):
        pids = [
            pid
            for marker, group in processes_of(number).items()
            for pid in group
            if marker != number or not is_own_spared
        ]
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _locks_of(pid: str) -> tuple[int, int]:
    text = _read(f"/proc/{pid}/limits")
    start = text.find(b"Max file locks")
    words = text[start + len(b"Max file locks") :].split(None, 2)[:2] if start >= 0 else []
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return 0, 0
    return int(words[0]), int(words[1])


def _is_dead(pid: str) -> bool:
    text = _read(f"/proc/{pid}/stat")
    return not text or text[text.rfind(b")") + 2 :][:1] in b"ZX"


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""
