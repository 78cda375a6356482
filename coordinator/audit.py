"""Who did what: every human action → **audit** → one line on the volume. Shared by the API, the page and the terminal.

The log is only ever appended to. Each process writes a line with one system call, so that lines of several do not mix.
"""

import fcntl
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from coordinator.errors import TranscriptError

log = logging.getLogger(__name__)

FILE_NAME = "audit.jsonl"
MAX_BYTES = 64 * 1024 * 1024
"""A log of this size is put aside under the next number, and another one begun."""
MAX_DETAIL_CHARS = 2_000

Action = Literal[
    "login",
    "login_refused",
    "logout",
    "run",
    "resume",
    "fork",
    "batch",
    "allow",
    "deny",
    "cancel",
    "apply",
    "drain",
    "undrain",
    "gc",
    "shell",
    "shell_end",
    "copy_in",
    "copy_out",
    "port",
    "port_end",
    "token_create",
    "token_revoke",
    "request",
    "call_denied",
]


class AuditLine(BaseModel):
    """One action of a person."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    at: datetime
    actor: str
    """The principal, or `user@host` at a terminal; "" for somebody who is not known."""
    address: str
    """Where the request came from, as the server saw it; "" for a terminal."""
    via: str
    """`page`, `api`, `terminal`, or `session` for what no person did."""
    action: str
    session: str = ""
    """The session that it was about; "" for none."""
    detail: str = ""


class AuditLog:
    """The log of one volume.

    Args:
        state_dir: The shared volume.
        max_bytes: As large a log grows.
    """

    def __init__(self, state_dir: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = state_dir / FILE_NAME
        self._max_bytes = max_bytes

    def write(self, action: Action, *, actor: str, address: str, via: str, session: str = "", detail: str = "") -> None:
        """Append one action, durably; blocks for that long.

        Raises:
            TranscriptError: it could not be written, and the action must not be done.
        """
        line = AuditLine(
            at=datetime.now(UTC),
            actor=actor,
            address=address,
            via=via,
            action=action,
            session=session,
            detail=detail[:MAX_DETAIL_CHARS],
        )
        # Not pydantic's: whatever a person sent is kept, lone surrogates too.
        content = json.dumps({**line.model_dump(), "at": line.at.isoformat()}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("ab") as lock:
                self._let_in(lock.fileno())
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._put_aside(len(content))
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    self._let_in(file)
                    os.write(file, content)
                    os.fsync(file)
                finally:
                    os.close(file)
        except OSError as exc:
            raise TranscriptError(f"{self.path} cannot be written: {exc}") from exc
        log.info("a person acted", extra={"actor": actor, "action": action, "session_id": session})

    def _let_in(self, file: int) -> None:
        """Give a file that root made to whom the volume is: a server that is not root must be able to go on with it."""
        if os.geteuid() != 0 or os.fstat(file).st_uid != 0:
            return
        volume = self.path.parent.stat()
        os.fchown(file, volume.st_uid, volume.st_gid)

    def _put_aside(self, more_bytes: int) -> None:
        try:
            size_bytes = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size_bytes and size_bytes + more_bytes > self._max_bytes:
            taken = [int(path.name.rsplit(".", 1)[1]) for path in self.path.parent.glob(f"{FILE_NAME}.[0-9]*")]
            self.path.rename(self.path.with_name(f"{FILE_NAME}.{max(taken, default=0) + 1}"))
