"""What people do at a terminal leaves a line in the audit log: command → **acting** → audit."""

import os
import pwd
import socket
from pathlib import Path

from coordinator.audit import Action, AuditLog

NO_LOGIN = 2**32 - 1
"""What the kernel says of a process that no login began."""


def actor() -> str:
    """Return who acts: `ann@host`, or `ann as root@host` for somebody who logged in as another user."""
    uid, login = os.getuid(), _login_uid()
    who = _name(uid)
    if login is not None and login != uid:
        who = f"{_name(login)} as {who}"
    return f"{who}@{socket.gethostname()}"


def keep_action(state_dir: Path, action: Action, *, session: str = "", detail: str = "") -> None:
    """Write what is about to be done into the audit log of a volume; blocks until it is on the disk.

    Raises:
        TranscriptError: it cannot be written, and the action must not be done.
    """
    AuditLog(state_dir).write(action, actor=actor(), address="", via="terminal", session=session, detail=detail)


def _login_uid() -> int | None:
    """Return the user that logged in, whatever it became since; None where the kernel does not know.

    Source: proc_pid_loginuid(5).
    """
    try:
        login = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if login == NO_LOGIN else login


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
