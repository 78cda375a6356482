"""What the service keeps of a session beside its transcript: sessions → **records** → index.

The record lies in the session's directory, so that the index can be made anew from the volume alone.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.errors import TranscriptError
from coordinator.service.wanted import NewSession, Webhook
from coordinator.session.principal import LOCAL

RECORD = "record.json"
"""In the session's directory, for its owner only."""
KEYS_DIR = "idempotency"
"""In the state directory: one small file for each idempotency key."""


class SessionRecord(BaseModel):
    """Who wanted a session, and what was wanted; the values of its variables are not in it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    v: Literal[1] = 1
    session_id: str
    principal: str = LOCAL
    created_at: datetime
    labels: dict[str, str] = {}
    loop: Literal["model", "none"] = "model"
    wanted: NewSession | None = None
    """The request, for going on with it; None for a session of a command line."""
    webhook: Webhook | None = None
    """With its secret."""
    forked_from: str | None = None
    """The session that it is a fork of."""
    coordinator: str = ""
    """In whose line it waited first."""

    def without_secrets(self) -> Self:
        """Return the record without the values of variables."""
        if self.wanted is None or not self.wanted.env:
            return self
        names = dict.fromkeys(self.wanted.env)
        return self.model_copy(update={"wanted": self.wanted.model_copy(update={"env": names})})


class KeyedSession(BaseModel):
    """What an idempotency key stands for."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    session_id: str
    salt: str
    digest: str
    """Of the body that came with the key."""
    maker: str = ""
    """The coordinator that makes the session; "" of an earlier release."""


def write_record(session_dir: Path, record: SessionRecord) -> None:
    """Keep a record, whole or not at all.

    Raises:
        TranscriptError: it cannot be written.
    """
    try:
        replace_file(session_dir / RECORD, record.model_dump_json().encode())
    except OSError as exc:
        raise TranscriptError(f"{session_dir / RECORD} cannot be written: {exc}") from exc


def read_record(session_dir: Path) -> SessionRecord:
    """Return a session's record; of one that a command line started, what its name tells."""
    try:
        # What a later release wanted of it besides does not make it another session.
        return SessionRecord.model_validate_json((session_dir / RECORD).read_bytes(), extra="ignore")
    except (OSError, ValidationError):
        return SessionRecord(session_id=session_dir.name, created_at=_created_at(session_dir))


def session_dirs(state_dir: Path) -> Iterator[Path]:
    """Yield the directories of all sessions on a volume."""
    try:
        with os.scandir(state_dir / "sessions") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)
    except FileNotFoundError:
        return


def claim_key(state_dir: Path, principal: str, key: str, keyed: KeyedSession) -> KeyedSession:
    """Let an idempotency key stand for a session; return what it stands for, which may be an earlier one.

    A file that is made under its name at once decides, also between several coordinators.

    Raises:
        TranscriptError: the volume cannot be written.
    """
    path = _key_file(state_dir, principal, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(keyed.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(made, path)
            except FileExistsError:
                return KeyedSession.model_validate_json(path.read_bytes())
        finally:
            Path(made).unlink(missing_ok=True)
    except (OSError, ValidationError) as exc:
        raise TranscriptError(f"{path.parent} cannot be used: {exc}") from exc
    return keyed


def release_key(state_dir: Path, principal: str, key: str) -> None:
    """Take a key back whose session could not be made."""
    _key_file(state_dir, principal, key).unlink(missing_ok=True)


def _key_file(state_dir: Path, principal: str, key: str) -> Path:
    """Return where is kept what an idempotency key stands for."""
    return state_dir / KEYS_DIR / hashlib.sha256(f"{principal}\0{key}".encode()).hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Put content in a file's place, durably; whoever reads sees the old or the new one, and nobody else does.

    Raises:
        OSError: it cannot be written; the old content is there.
    """
    # mkstemp makes files that only their owner can read.
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _created_at(session_dir: Path) -> datetime:
    try:
        return datetime.strptime(session_dir.name[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(session_dir.stat().st_mtime, UTC)
