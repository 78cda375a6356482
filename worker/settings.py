"""A node's settings: `SANDHOG_*` variables and the settings file, read once by the wiring."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from sandbox.profiles import Profile
from tools.base import ErrorCode
from worker.contract.breaker import BreakerSettings
from worker.contract.logs import LogForm, LogLevel
from worker.contract.places import own_tools_dir
from worker.contract.settings_file import FileSettings, Hidden, In, NotInFile
from worker.own_wire import OWN_LIMITS, OwnLimits
from worker.spill import MIB, SpillBounds


class RegistrySettings(BaseModel):
    """Who pulls from one registry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    username: str
    password: SecretStr
    principals: frozenset[str] | None = None
    """Whose sessions pull with it, and may use what it pulled; None is everybody's."""


class NodeSettings(FileSettings):
    """What one worker process needs to know."""

    sections: ClassVar[tuple[str, ...]] = ("worker", "cluster", "retention")

    redis_url: Annotated[str, In("cluster"), Hidden()]
    """`redis://`, `rediss://` or `unix:///path/to/socket`."""
    state_dir: Annotated[Path, In("cluster")]
    """Root of the shared volume: the same absolute path on every coordinator and node."""
    node: str = Field(default="node", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The node's name; of all workers that share a Redis only one may carry it."""
    labels: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_./-]*=[^,\s]*(,|$))*$", max_length=2000)
    """Names and values that sessions may be pinned to: `zone=a,gpu=no`."""
    node_dir: Path | None = None
    """The node's own directory for records of its boxes and guest folders; default: `<state_dir>/nodes/<node>`."""
    places: int = Field(default=8, ge=1)
    """Room for boxes."""
    lanes: int | None = Field(default=None, ge=1)
    """Worker threads for calls; default: four a place."""
    metrics_token: Annotated[SecretStr | None, In("cluster"), Hidden()] = None
    """What Prometheus must carry as bearer token."""
    log: Annotated[LogForm, In("cluster")] = "text"
    """How `sandhog serve` and workers log to stderr: text for people, or json, one object a line."""
    log_level: Annotated[LogLevel, In("cluster")] = "warning"
    """From which level on."""
    dead_man_s: int = Field(default=120, ge=10)
    """A box ends itself when its node has been silent this long."""
    freeze_s: float = Field(default=45.0, ge=1)
    """Boxes stand still when their node has had no lease for so long; a third later their sessions may move to another
    node. A restart must take less."""
    spill_call_bytes: int = Field(default=SpillBounds.call_bytes, ge=0)
    """How much of one call's output is kept in its spill file."""
    spill_session_bytes: int = Field(default=SpillBounds.session_bytes, ge=0)
    """How much all spill files of a session may hold together."""
    breaker: BreakerSettings = BreakerSettings()
    """When tools are switched off after faults, as JSON: `{"default": {"faults": 3}, "tools": {"Bash": {…}}}`."""
    tools: Annotated[str, In("cluster")] = ""
    """Files and directories of own tools, with `:` between them; the coordinators need the same."""
    secrets_dir: Annotated[Path | None, In("cluster")] = None
    """Secrets of own tools: `<directory>/<principal>/<name>`; readable for this process, not for a box."""
    own_memory_mib: int = Field(default=OWN_LIMITS.memory_bytes // MIB, ge=256)
    """Address space that each process of an own tool's call may have."""
    own_processes: int = Field(default=OWN_LIMITS.processes, ge=8)
    """Processes and threads that the call of an own tool may have, where the node is root."""
    idle_s: float = Field(default=900.0, ge=1)
    """A session without a call for so long has its box ended and its place given back; its workspace stays."""
    pool_min: int = Field(default=0, ge=0)
    """Boxes kept ready for each image and profile that was wanted lately; they count against the places."""
    pool_max: int = Field(default=0, ge=0)
    """The most of them, when as many were wanted within a minute."""
    min_free_mib: int = Field(default=1024, ge=0)
    """What disks must have free before a box is started."""
    pull: bool = True
    """Whether an image that is not on the engine is pulled."""
    pull_timeout_s: float = Field(default=900.0, gt=0)
    """How long one pull may take."""
    image_budget_mib: Annotated[int | None, In("retention")] = Field(default=None, ge=0)
    """What pulled images may take together; the longest unused are removed beyond it. Images that were not pulled by a
    node are neither counted nor removed."""
    registries: Annotated[dict[str, RegistrySettings | tuple[RegistrySettings, ...]], Hidden()] = Field(default={})
    """Who pulls from which registry, as JSON: `{"ghcr.io": {"username": "…", "password": "…"}}`, or a list of such."""
    profiles: dict[str, Profile] = Field(default={})
    """Own profiles beside small, medium and large, as JSON: `{"big": {"memory": "16GiB", "cpus": 8}}`."""
    workspace_disks: bool = True
    """Whether private copies get file systems of fixed size where that can be done; else their size is watched."""
    keep_copies_h: Annotated[float, In("retention")] = Field(default=24.0, gt=0)
    """Private copies of sessions that did not complete are removed so long after their last event."""
    keep_copies_mib: Annotated[int | None, In("retention")] = Field(default=None, ge=0)
    """What private copies may take together; the longest unused go first, never one in use."""
    keep_spill_days: Annotated[float, In("retention")] = Field(default=7.0, gt=0)
    """Spilled output of sessions is removed so long after their last event."""
    keep_spill_mib: Annotated[int | None, In("retention")] = Field(default=None, ge=0)
    """What spilled output may take together; the oldest goes first."""
    keep_transcripts_days: Annotated[float, In("retention")] = Field(default=30.0, gt=0)
    """Sessions are removed so long after their last event, with transcript, patch and all else that is left."""
    keep_transcripts_mib: Annotated[int | None, In("retention")] = Field(default=None, ge=0)
    """What sessions may take together, their copies and spilled output not counted; the oldest go first."""
    allow_open_network: bool = False
    """Whether boxes may have the engine's network (profiles with `network: open`)."""
    proofs_dir: Path | None = None
    """What was proven once of images on engines; default: `<state_dir>/proofs`."""
    made_keep_days: Annotated[float, In("retention")] = Field(default=14.0, gt=0)
    """Images that set-up or a Dockerfile made are removed when nobody used them for so long."""
    git_hosts: tuple[str, ...] = ()
    """Hosts, as JSON, that repositories may be fetched from at private, loopback or own addresses and by plain http."""
    git_credentials: Path | None = None
    """File with what repositories are fetched with, by name; see docs/workspaces.md."""
    git_ca_file: Path | None = None
    """Certificates that are trusted for repositories, in place of the machine's."""
    workspace_roots: tuple[Path, ...] = ()
    """Directories, as JSON, below which sessions of the API may name one of this node to be copied."""
    sources_dir: Path | None = None
    """Where workspaces are put while they are fetched; every user must be able to pass through it. Default: below the
    directory for temporary files."""
    source_mib: int = Field(default=4096, ge=1)
    """What a repository's commit, an archive or an image's directory may hold."""
    source_keep_mib: Annotated[int, In("retention")] = Field(default=8192, ge=0)
    """What commits that were fetched may take while nobody needs them."""
    source_timeout_s: float = Field(default=600.0, gt=0)
    """For fetching one of them."""
    egress_private: tuple[str, ...] = ()
    """Names, as JSON, that boxes with a way out may reach at private, loopback or own addresses: mirrors inside."""
    egress_deny: tuple[str, ...] = ()
    """Networks, as JSON, that boxes never reach: public addresses that lead inside. `["203.0.113.0/24"]`."""
    egress_mib_per_s: int = Field(default=32, ge=1)
    """What one box may send and receive a second; its calls share the link."""
    egress_total_mib: int = Field(default=16 * 1024, ge=1)
    """What one box may send and receive in all."""
    alive_file: Path | None = None
    """Touched whenever the lease is renewed while the node's canary comes through, for a container's health check."""
    canary_s: float = Field(default=15.0, gt=0)
    """The node sends itself a message so often, through its own queue."""
    canary_limit_s: float = Field(default=90.0, gt=0)
    """When none of them has come through for so long while Redis answers, the node starts itself anew."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of `/metrics` for Prometheus; it is off without."""
    metrics_host: str = "127.0.0.1"
    """Where that listens; beyond loopback only with a token."""
    owner_fd: Annotated[int | None, NotInFile()] = None
    """Read end of a pipe whose other end the owner of this node holds: when that closes, the node ends."""
    run_dir: Annotated[Path | None, NotInFile()] = None
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
    def secret_values(self) -> list[str]:
        """Values that must not be shown in a log; the password of Redis is masked by its shape."""
        logins = [
            login for given in self.registries.values() for login in (given if isinstance(given, tuple) else (given,))
        ]
        hidden = [login.password for login in logins] + ([self.metrics_token] if self.metrics_token else [])
        return [secret.get_secret_value() for secret in hidden]

    @property
    def spill_bounds(self) -> SpillBounds:
        """How much output is kept."""
        return SpillBounds(self.spill_call_bytes, self.spill_session_bytes)

    @property
    def own_limits(self) -> OwnLimits:
        """What the calls of own tools may take."""
        return OwnLimits(memory_bytes=self.own_memory_mib * MIB, processes=self.own_processes)

    @property
    def tool_paths(self) -> list[str]:
        """Where own tools are loaded from."""
        return [path for path in self.tools.split(":") if path]

    @property
    def label_map(self) -> dict[str, str]:
        """The labels by name."""
        pairs = [pair.partition("=") for pair in self.labels.split(",") if pair]
        return {name: value for name, _, value in pairs}

    @property
    def scratch_dir(self) -> Path:
        """Where the calls of own tools have their homes."""
        return own_tools_dir(self.node)

    @property
    def lane_count(self) -> int:
        """Worker threads for calls."""
        return self.lanes or 4 * self.places

    @property
    def own_dir(self) -> Path:
        """Directory for what belongs to this node alone."""
        return self.node_dir or self.state_dir / "nodes" / self.node
