"""What a box is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What a box may use. Every limit is proven from inside at the start."""

    memory_bytes: int = 2048 * MIB
    """Memory and swap together: there is no swap beyond it."""
    cpus: float = 2.0
    pids: int = 4096
    open_files: int = 16_384
    shm_bytes: int = 64 * MIB


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
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """For commands, over the image's own environment."""
    egress: tuple[str, ...] = ()
    """Hosts that commands may reach through the worker (see `egress.rules.parse_rule`); empty is no way out."""
    runtime: str | None = None
    """The engine's runtime, such as runsc; None is its default."""
    dead_man_s: int = 120
    """The box ends by itself after so long without a heartbeat."""
    freeze_s: int = 45
    """Commands are stopped after so long without a heartbeat, until `Box.thaw`."""
    lifetime_s: int = 24 * 3600
    """How long the record says the box may live unless it is renewed."""
    profile: str = "default"
    allow_weak: frozenset[str] = frozenset()
    """Names of controls that may be missing (see `ControlNotEnforced.control`)."""
