"""What a box is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

MIB = 1024 * 1024
GIB = 1024 * MIB


class Network(StrEnum):
    """What a box can reach."""

    NONE = "none"
    ALLOWLIST = "allowlist"
    """Named hosts, through the link and the worker; the box itself has no network."""
    OPEN = "open"
    """The engine's bridge: everything that its host can reach."""


@dataclass(frozen=True)
class Limits:
    """What a box may use. Every limit is proven from inside at the start."""

    memory_bytes: int = 2048 * MIB
    """Memory and swap together: there is no swap beyond it. What lies in shm, /tmp and home counts."""
    cpus: float = 2.0
    """A machine that has fewer gives what it has."""
    pids: int = 4096
    """Processes and threads together."""
    open_files: int = 16_384
    """Of one process."""
    shm_bytes: int = 64 * MIB
    tmp_bytes: int | None = None
    """Size of /tmp; None is a quarter of the memory."""
    home_bytes: int | None = None
    """Size of /home/agent; None is an eighth of the memory."""
    workspace_bytes: int | None = None
    """What a private copy may grow to, and how much a bound directory and the rest of the box's files may grow by; None
    bounds neither."""

    @property
    def tmp_size_bytes(self) -> int:
        """Size of /tmp."""
        return self.memory_bytes // 4 if self.tmp_bytes is None else self.tmp_bytes

    @property
    def home_size_bytes(self) -> int:
        """Size of /home/agent."""
        return self.memory_bytes // 8 if self.home_bytes is None else self.home_bytes


@dataclass(frozen=True)
class BoxSpec:
    """Everything fixed when a box is made."""

    image: str
    workspace_dir: Path
    """On the host; `/workspace` inside, writable."""
    spill_dir: Path
    """On the host; `/spill` inside, read-only."""
    uid: int
    """The user of commands and file work; 0 runs them as root (a command can then end its own box)."""
    gid: int
    workspace_size_bytes: int | None = None
    """Of the file system that the workspace has for itself; None where it has none."""
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """For commands, over the image's own environment."""
    egress: tuple[str, ...] = ()
    """Hosts that commands may reach through the worker (see `egress.rules.parse_rule`); empty is no way out."""
    runtime: str | None = None
    """The engine's runtime, such as runsc; None is its default."""
    network: Network = Network.NONE
    dead_man_s: int = 120
    """The box ends by itself after so long without a heartbeat."""
    freeze_s: int = 45
    """Commands are stopped after so long without a heartbeat, until `Box.thaw`."""
    lifetime_s: int = 24 * 3600
    """How long the record says the box may live unless it is renewed."""
    installs: bool = False
    """Commands of root may change files of every owner inside: for a box whose result becomes an image."""
    profile: str = "default"
    principal: str = ""
    """Whose session it is: which images it may have, and by whose login."""
    allow_weak: frozenset[str] = frozenset()
    """Names of controls that may be missing (see `ControlNotEnforced.control`)."""

    @property
    def is_gvisor(self) -> bool:
        """Whether the box has a kernel of its own: limits are then seen and set otherwise."""
        return self.runtime is not None and self.runtime.startswith("runsc")
