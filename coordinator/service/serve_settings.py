"""Settings of `sandhog serve` alone: `SANDHOG_*` variables beside those of `coordinator.settings`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from coordinator.errors import ConfigError

RootName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
MIN_TOKEN_CHARS = 16


class ServeSettings(BaseSettings):
    """What the HTTP service needs to know."""

    model_config = SettingsConfigDict(env_prefix="SANDHOG_", extra="ignore", use_attribute_docstrings=True)

    api_token: SecretStr | None = None
    """Token of the first principal, whose name is `local`."""
    roots: dict[RootName, Path] = {}
    """Directories that sessions may work on, by name, as JSON: `{"projects": "/srv/projects"}`. None other is used."""
    max_sessions: int = Field(default=500, ge=1)
    """Sessions that run in this process at once; further ones wait."""
    drain_s: float = Field(default=60.0, ge=0)
    """How long running sessions may go on after SIGTERM; then they are left for another coordinator."""
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
    """Return the settings as the environment has them.

    Raises:
        ConfigError: one is wrong; the message names it, never its value.
    """
    try:
        return ServeSettings()
    except SettingsError as exc:
        raise ConfigError(f"{exc}: it must be JSON.") from exc
    except ValidationError as exc:
        faults = "; ".join(f"SANDHOG_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in exc.errors())
        raise ConfigError(f"A setting is wrong: {faults}") from exc
