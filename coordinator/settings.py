"""The coordinator's settings: `SANDHOG_*` variables, read once by the command line."""

import os
from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from coordinator.errors import ConfigError
from coordinator.session.bounds import BUDGETS, Budgets
from worker.contract.orders import DEFAULT_PROFILE

DEFAULT_IMAGE = "sandhog-box:latest"


def default_state_dir() -> Path:
    """Return `$XDG_STATE_HOME/sandhog`, by default below the home directory.

    Source: XDG Base Directory Specification 0.8.
    """
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sandhog"


class Settings(BaseSettings):
    """What does not change from session to session."""

    model_config = SettingsConfigDict(env_prefix="SANDHOG_", extra="ignore", use_attribute_docstrings=True)

    redis_url: str | None = None
    """A cluster's Redis; None starts a private one with one worker."""
    state_dir: Path = Field(default_factory=default_state_dir)
    """Transcripts, spilled output, copies and patches; a cluster's shared volume."""

    @field_validator("state_dir")
    @classmethod
    def _is_absolute(cls, value: Path) -> Path:
        # Nodes have another working directory, and the engine mounts absolute paths only.
        return value.expanduser().absolute()

    model: str | None = None
    """The model's name, where `--model` does not say it."""
    dead_man_s: int = Field(default=90, ge=10)
    """Embedded cluster: a box whose worker has been silent this long ends by itself."""
    models_file: Path | None = None
    """Prices and windows of models; see docs/limits-and-context.md."""
    context_tokens: int | None = Field(default=None, ge=1000)
    """Window of the model; it is learned where nobody says it."""
    image: str = DEFAULT_IMAGE
    """Image of the boxes."""
    profile: str = DEFAULT_PROFILE
    """Limits and boundaries of the boxes: small, medium, large or one of the nodes' own."""
    policy_file: Path | None = None
    """A policy of your own, asked before guarded or boxed; see docs/policies.md."""
    approval_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long a human's answer is waited for; then it is no."""
    result_bytes: int = Field(default=BUDGETS.result_bytes, ge=4_000, le=1_000_000)
    """Text of one result that the model is shown; what is longer is cut to its head and tail."""
    step_bytes: int = Field(default=BUDGETS.step_bytes, ge=10_000, le=10_000_000)
    """Text of all results of one step together."""
    task_depth: int = Field(default=1, ge=0, le=4)
    """How deep sub-agents may go: with 1 a session has some and they have none; see docs/sub-agents.md."""
    mcp_config: Path | None = None
    """MCP servers whose tools sessions get; see docs/mcp.md."""
    tools: str = ""
    """Files and directories of own tools, with `:` between them; `--tools` adds to them."""
    strict_tools: bool = False
    """Whether the endpoint decodes by the tools' schemas (`strict: true`) and gets their strict rendering."""
    endpoint_quirks: str = ""
    """What the endpoint wants otherwise than most, as a JSON object; see docs/model-endpoints.md."""
    endpoint_requests: int = Field(default=64, ge=1, le=10_000)
    """Requests under way at once to one endpoint, of all sessions of a process."""
    endpoint_timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """The longest silence of the endpoint."""
    endpoint_tries: int = Field(default=6, ge=1, le=100)
    """Requests for one reply, the first one included."""
    endpoint_retry_s: float = Field(default=300.0, ge=0, le=86_400)
    """How long one reply is tried for; waiting for a place at the endpoint does not count."""
    secrets_dir: Path | None = None
    """Embedded cluster: secrets of own tools, `<directory>/<principal>/<name>`."""

    @property
    def budgets(self) -> Budgets:
        """How much text the model is shown."""
        return Budgets(result_bytes=self.result_bytes, step_bytes=self.step_bytes)

    @property
    def tool_paths(self) -> list[str]:
        """Where own tools are loaded from."""
        return [path for path in self.tools.split(":") if path]


def read_settings() -> Settings:
    """Return the settings as the environment has them.

    Raises:
        ConfigError: one is wrong; the message names it.
    """
    try:
        return Settings()
    except ValidationError as exc:
        faults = "; ".join(f"SANDHOG_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in exc.errors())
        raise ConfigError(f"A setting is wrong: {faults}") from exc
