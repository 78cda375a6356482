"""The coordinator's settings: `SANDHOG_*` variables and the settings file, read once by the command line."""

import os
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field, SecretStr, field_validator

from coordinator.errors import ConfigError
from coordinator.session.bounds import BUDGETS, Budgets
from worker.contract.logs import LogForm, LogLevel
from worker.contract.orders import DEFAULT_PROFILE
from worker.contract.settings_file import FileSettings, Hidden, In, SettingsWrong, read

DEFAULT_IMAGE = "sandhog-box:latest"


def default_state_dir() -> Path:
    """Return `$XDG_STATE_HOME/sandhog`, by default below the home directory.

    Source: XDG Base Directory Specification 0.8.
    """
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sandhog"


class Settings(FileSettings):
    """What does not change from session to session."""

    sections: ClassVar[tuple[str, ...]] = ("session", "cluster", "endpoint", "limits")

    redis_url: Annotated[str | None, In("cluster"), Hidden()] = None
    """A cluster's Redis: `redis://`, `rediss://` or `unix:///path/to/socket`. Without one a command brings its own, and
    one worker."""
    state_dir: Annotated[Path, In("cluster")] = Field(default_factory=default_state_dir)
    """Transcripts, spilled output, copies and patches; a cluster's shared volume. Default:
    `$XDG_STATE_HOME/sandhog`."""

    metrics_token: Annotated[SecretStr | None, In("cluster"), Hidden()] = None
    """What Prometheus must carry as bearer token."""
    log: Annotated[LogForm, In("cluster")] = "text"
    """How `sandhog serve` and workers log to stderr: text for people, or json, one object a line."""
    log_level: Annotated[LogLevel, In("cluster")] = "warning"
    """From which level on."""

    @field_validator("state_dir")
    @classmethod
    def _is_absolute(cls, value: Path) -> Path:
        # Nodes have another working directory, and the engine mounts absolute paths only.
        return value.expanduser().absolute()

    model: Annotated[str | None, In("endpoint")] = None
    """The model's name, where `--model` does not say it."""
    endpoint_url: Annotated[str | None, In("endpoint"), Hidden()] = None
    """The endpoint's address, where OPENAI_BASE_URL does not say it; OPENAI_API_KEY alone has the key."""
    dead_man_s: Annotated[int, In("worker")] = Field(default=90, ge=10)
    """Embedded cluster: a box whose worker has been silent this long ends by itself."""
    models_file: Annotated[Path | None, In("limits")] = None
    """Prices and windows of models; see docs/limits-and-context.md."""
    webhook_secret: Annotated[SecretStr | None, In("session"), Hidden()] = None
    """Signs what the webhook of a batch is sent, 16 characters at least."""
    context_tokens: Annotated[int | None, In("limits")] = Field(default=None, ge=1000)
    """Window of the model; it is learned where nobody says it."""
    image: str = DEFAULT_IMAGE
    """Image of the boxes."""
    profile: str = DEFAULT_PROFILE
    """Limits and boundaries of the boxes: small, medium, large or one of the nodes' own."""
    policy_file: Path | None = None
    """A policy of your own, asked before guarded or boxed; see docs/policies.md."""
    approval_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long a human's answer is waited for; then it is no."""
    result_bytes: Annotated[int, In("limits")] = Field(default=BUDGETS.result_bytes, ge=4_000, le=1_000_000)
    """Text of one result that the model is shown; what is longer is cut to its head and tail."""
    step_bytes: Annotated[int, In("limits")] = Field(default=BUDGETS.step_bytes, ge=10_000, le=10_000_000)
    """Text of all results of one step together."""
    task_depth: Annotated[int, In("limits")] = Field(default=1, ge=0, le=4)
    """How deep sub-agents may go: with 1 a session has some and they have none; see docs/sub-agents.md."""
    mcp_config: Path | None = None
    """MCP servers whose tools sessions get; see docs/mcp.md."""
    tools: Annotated[str, In("cluster")] = ""
    """Files and directories of own tools, with `:` between them; `--tools` adds to them."""
    strict_tools: Annotated[bool, In("endpoint")] = False
    """Whether the endpoint decodes by the tools' schemas (`strict: true`) and gets their strict rendering."""
    endpoint_quirks: Annotated[str, In("endpoint")] = ""
    """What the endpoint wants otherwise than most, as a JSON object; see docs/model-endpoints.md."""
    endpoint_requests: Annotated[int, In("endpoint")] = Field(default=512, ge=1, le=10_000)
    """Requests under way at once to one endpoint, of all sessions of a process."""
    endpoint_timeout_s: Annotated[float, In("endpoint")] = Field(default=300.0, gt=0, le=86_400)
    """The longest silence of the endpoint."""
    endpoint_tries: Annotated[int, In("endpoint")] = Field(default=6, ge=1, le=100)
    """Requests for one reply, the first one included."""
    endpoint_retry_s: Annotated[float, In("endpoint")] = Field(default=300.0, ge=0, le=86_400)
    """How long one reply is tried for; waiting for a place at the endpoint does not count."""
    secrets_dir: Annotated[Path | None, In("cluster")] = None
    """Embedded cluster: secrets of own tools, `<directory>/<principal>/<name>`."""

    @property
    def budgets(self) -> Budgets:
        """How much text the model is shown."""
        return Budgets(result_bytes=self.result_bytes, step_bytes=self.step_bytes)

    @property
    def tool_paths(self) -> list[str]:
        """Where own tools are loaded from."""
        return [path for path in self.tools.split(":") if path]


Model = TypeVar("Model", bound=FileSettings)


def read_settings() -> Settings:
    """Return the settings as environment and file have them.

    Raises:
        ConfigError: one is wrong; the message names it.
    """
    return read_model(Settings)


def read_model(model: type[Model]) -> Model:
    """Return the settings of one kind as environment and file have them.

    Raises:
        ConfigError: one is wrong; the message names it, and no secret's value.
    """
    try:
        return read(model)
    except SettingsWrong as exc:
        raise ConfigError(f"A setting is wrong: {exc}") from exc
