"""A session's request, kept in its directory so that any process can go on with it: request → **saved** → resume.

No secret is in it: the box's variables lie in a file of their own, and keys and headers of the endpoint come from the
environment of whoever goes on.
"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from coordinator.endpoint.model import ModelSettings
from coordinator.errors import TranscriptError
from coordinator.session.model_table import ModelTable
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest

NAME = "session.json"
VERSION = 1


class SavedSession(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    v: int = VERSION
    session_id: str
    request: dict[str, JsonValue]
    """The fields of `SessionRequest`, without values of variables and headers."""
    model: dict[str, JsonValue]
    """The fields of `ModelSettings`, without the key."""
    headers: tuple[str, ...] = ()
    """Names of the headers that the endpoint was sent: their values must be given anew."""

    def to_request(self, models: ModelTable) -> SessionRequest:
        """Return the request; what is known of models is the caller's.

        Raises:
            TranscriptError: it is of a release that this one does not understand.
        """
        try:
            return replace(_requests().validate_python(self.request, extra="ignore"), models=models)
        except ValidationError as exc:
            raise _unreadable(self.session_id, exc) from exc

    def to_model(self, api_key: str | None) -> ModelSettings:
        """Return how the model is asked, with the caller's key.

        Raises:
            TranscriptError: it is of a release that this one does not understand.
        """
        try:
            return replace(_models().validate_python(self.model, extra="ignore"), api_key=api_key)
        except ValidationError as exc:
            raise _unreadable(self.session_id, exc) from exc


def save_session(
    session_dir: Path, session_id: str, request: SessionRequest, model: ModelSettings, redactor: Redactor
) -> None:
    """Keep what a session was asked for; for its owner only.

    Raises:
        OSError: it cannot be written.
    """
    without: dict[str, Any] = {"models": True, "box": {"env", "sources", "archive", "mcp"}, "parameters": {"headers"}}
    asked: dict[str, Any] = _requests().dump_python(request, mode="json", exclude=without)
    asked["prompt"] = redactor.text(request.prompt)
    told: dict[str, Any] = _models().dump_python(model, mode="json", exclude={"api_key"})
    told["base_url"] = _without_credentials(model.base_url)
    saved = SavedSession(
        session_id=session_id, request=asked, model=told, headers=tuple(sorted(request.parameters.headers))
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(session_dir / NAME, flags, 0o600), "wb") as file:
        file.write(saved.model_dump_json().encode())
        file.flush()
        os.fsync(file.fileno())


def read_saved(session_dir: Path) -> SavedSession:
    """Return what a session was asked for.

    Raises:
        TranscriptError: it is not there, or cannot be read.
    """
    try:
        saved = SavedSession.model_validate_json((session_dir / NAME).read_bytes())
    except FileNotFoundError as exc:
        raise TranscriptError(f"{session_dir} has no {NAME}: nobody can go on with this session.") from exc
    except (OSError, ValidationError) as exc:
        raise _unreadable(session_dir.name, exc) from exc
    if saved.v > VERSION:
        raise TranscriptError(f"{session_dir / NAME} is of a later release (version {saved.v}); use that one.")
    return saved


@cache
def _requests() -> TypeAdapter[SessionRequest]:
    return TypeAdapter(SessionRequest)


@cache
def _models() -> TypeAdapter[ModelSettings]:
    return TypeAdapter(ModelSettings)


def _without_credentials(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _unreadable(session: str, fault: Exception) -> TranscriptError:
    first = fault.errors()[0] if isinstance(fault, ValidationError) else None
    words = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(fault)
    return TranscriptError(f"The request of session {session} cannot be read: {words}")
