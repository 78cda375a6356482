"""A node's settings: `SANDHOG_*` variables, read once by the wiring."""

import os
import tempfile
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tools.base import ErrorCode
from worker.contract.breaker import BreakerSettings


class NodeSettings(BaseSettings):
    """What one worker process needs to know."""

    model_config = SettingsConfigDict(env_prefix="SANDHOG_", extra="ignore", use_attribute_docstrings=True)

    redis_url: str
    """`redis://`, `rediss://` or `unix:///path/to/socket`."""
    state_dir: Path
    """Root of the shared volume: the same absolute path on every coordinator and node."""
    node: str = Field(default="node", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The node's name; of all workers that share a Redis only one may carry it."""
    node_dir: Path | None = None
    """The node's own directory for records of its boxes and guest folders; default: `<state_dir>/nodes/<node>`."""
    places: int = Field(default=8, ge=1)
    """Room for boxes."""
    lanes: int | None = Field(default=None, ge=1)
    """Worker threads for calls; default: four a place."""
    dead_man_s: int = Field(default=120, ge=10)
    """A box ends itself when its node has been silent this long."""
    breaker: BreakerSettings = BreakerSettings()
    """When tools are switched off after faults, as JSON: `{"default": {"faults": 3}, "tools": {"Bash": {…}}}`."""
    tools: str = ""
    """Files and directories of own tools, with `:` between them; the coordinators need the same."""
    secrets_dir: Path | None = None
    """Secrets of own tools: `<directory>/<principal>/<name>`; readable for this process, not for a box."""
    owner_fd: int | None = None
    """Read end of a pipe whose other end the owner of this node holds: when that closes, the node ends."""
    run_dir: Path | None = None
    """With `owner_fd`: the owner's directory, removed with its Redis once the owner has ended."""

    @field_validator("breaker")
    @classmethod
    def _names_error_codes(cls, breaker: BreakerSettings) -> BreakerSettings:
        for rule in (breaker.default, *breaker.tools.values()):
            unknown = sorted(set(rule.counts_as_fault or ()) - set(ErrorCode))
            if unknown:
                raise ValueError(f"counts_as_fault: there is no error code {', '.join(unknown)}")
        return breaker

    @property
    def tool_paths(self) -> list[str]:
        """Where own tools are loaded from."""
        return [path for path in self.tools.split(":") if path]

    @property
    def scratch_dir(self) -> Path:
        """Where the calls of own tools have their homes: a place that every user of the machine can get to."""
        return Path(tempfile.gettempdir()) / f"sandhog-{os.geteuid()}-{self.node}-tools"

    @property
    def lane_count(self) -> int:
        """Worker threads for calls."""
        return self.lanes or 4 * self.places

    @property
    def own_dir(self) -> Path:
        """Directory for what belongs to this node alone."""
        return self.node_dir or self.state_dir / "nodes" / self.node
