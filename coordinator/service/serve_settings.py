"""Settings of `sandhog serve` alone, beside those of `coordinator.settings`."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr, StringConstraints, field_validator

from coordinator.settings import read_model
from worker.contract.settings_file import FileSettings, Hidden, In

RootName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
MIN_TOKEN_CHARS = 16


class ServeSettings(FileSettings):
    """What the HTTP service needs to know."""

    sections: ClassVar[tuple[str, ...]] = ("serve",)

    api_token: Annotated[SecretStr | None, Hidden()] = None
    """Token of the first principal, whose name is `local`."""
    metrics_token: Annotated[SecretStr | None, In("cluster"), Hidden()] = None
    """What Prometheus must carry as bearer token."""
    box_canary_s: float | None = Field(default=None, ge=1)
    """So long after one canary call, through queue, worker and a box, the next is made; none without. Each takes a
    place for a moment."""
    roots: dict[RootName, Path] = Field(default={})
    """Directories that sessions may work on, by name, as JSON: `{"projects": "/srv/projects"}`. None other is used."""
    max_sessions: int = Field(default=500, ge=1)
    """Sessions that run in this process at once; further ones wait."""
    drain_s: float = Field(default=60.0, ge=0)
    """How long sessions at work may go on after SIGTERM; then they are left for another coordinator."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=10_000)
    """Largest body of a request."""
    max_archive_bytes: int = Field(default=512 * 1024 * 1024, ge=1)
    """Largest archive that may be uploaded."""
    max_file_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Largest file that is read out of a workspace."""
    webhook_private: tuple[str, ...] = ()
    """Host names, as JSON, that webhooks may reach at private or loopback addresses."""

    @field_validator("api_token")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_TOKEN_CHARS:
            raise ValueError(f"it needs {MIN_TOKEN_CHARS} characters at least")
        return value

    @field_validator("roots")
    @classmethod
    def _are_absolute(cls, value: dict[str, Path]) -> dict[str, Path]:
        relative = sorted(name for name, path in value.items() if not path.is_absolute())
        if relative:
            raise ValueError(f"the path of {', '.join(relative)} is not absolute")
        return value


def read_serve_settings() -> ServeSettings:
    """Return the settings as environment and file have them.

    Raises:
        ConfigError: one is wrong; the message names it.
    """
    return read_model(ServeSettings)
