"""Profiles: named limits and boundaries for boxes, the built-in ones and a user's own → **profile** → spec."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

from sandbox.controls import WEAKENABLE
from sandbox.errors import SandboxError
from sandbox.spec import GIB, MIB, Limits, Network

GUEST_BYTES = 64 * MIB
"""Left for the guest beside everything that lies in memory."""


class UnknownProfile(SandboxError):
    """There is no profile of that name."""


class User(StrEnum):
    """Who commands run as."""

    AGENT = "agent"
    """A user without rights; on a private copy one of the session's own."""
    ROOT = "root"
    """Root inside, without the capabilities that matter; such a command can end its own box."""


class Profile(BaseModel):
    """What a box may use and reach. Sizes are bytes or text such as `512MiB`, `8GiB`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    memory: ByteSize = ByteSize(2 * GIB)
    """Memory without swap. What lies in shm, tmp and home counts."""
    cpus: float = Field(default=2.0, ge=0.05)
    """A machine that has fewer gives what it has."""
    pids: int = Field(default=4096, ge=32)
    """Processes and threads together."""
    open_files: int = Field(default=16_384, ge=64)
    """Of one process."""
    shm: ByteSize = ByteSize(64 * MIB)
    tmp: ByteSize | None = None
    """/tmp; default: a quarter of the memory."""
    home: ByteSize | None = None
    """/home/agent; default: an eighth of the memory."""
    workspace: ByteSize | None = ByteSize(10 * GIB)
    """What a private copy may grow to, and how much a bound directory and the rest of the box's files may grow by."""
    lifetime_s: int = Field(default=24 * 3600, ge=60)
    """A box is removed so long after its last use, whoever forgot it."""
    idle_s: int | None = Field(default=None, ge=10)
    """A box that no call has used for so long is ended; default: the node's own."""
    user: User = User.AGENT
    network: Network = Network.NONE
    hosts: tuple[str, ...] = ()
    """With network `allowlist`: the hosts that commands may reach (see `egress.rules.parse_rule`)."""
    runtime: Literal["runc", "runsc"] | None = None
    """Default: the engine's own."""
    allow_weak: frozenset[str] = frozenset()
    """Names of controls that may be missing where the runtime cannot enforce them."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        limits = self.limits()
        in_memory = limits.shm_bytes + limits.tmp_size_bytes + limits.home_size_bytes
        if in_memory + GUEST_BYTES > limits.memory_bytes:
            raise ValueError(
                f"shm, tmp and home take {shown_bytes(in_memory)} and the guest {shown_bytes(GUEST_BYTES)}: together "
                f"more than the memory of {shown_bytes(limits.memory_bytes)}, in which they lie"
            )
        if self.hosts and self.network is not Network.ALLOWLIST:
            raise ValueError(f"hosts belong to network 'allowlist', not to {self.network.value!r}")
        unknown = self.allow_weak - WEAKENABLE
        if unknown:
            raise ValueError(f"allow_weak names {', '.join(sorted(unknown))}; known: {', '.join(sorted(WEAKENABLE))}")
        return self

    def limits(self) -> Limits:
        """The limits as a box's specification holds them."""
        return Limits(
            memory_bytes=int(self.memory),
            cpus=self.cpus,
            pids=self.pids,
            open_files=self.open_files,
            shm_bytes=int(self.shm),
            tmp_bytes=None if self.tmp is None else int(self.tmp),
            home_bytes=None if self.home is None else int(self.home),
            workspace_bytes=None if self.workspace is None else int(self.workspace),
        )

    @property
    def digest(self) -> str:
        """The same for two profiles that say the same."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


BUILT_IN: Mapping[str, Profile] = {
    "small": Profile(memory=ByteSize(GIB), cpus=1.0, pids=1024, open_files=4096, workspace=ByteSize(4 * GIB)),
    "medium": Profile(),
    "large": Profile(
        memory=ByteSize(8 * GIB),
        cpus=4.0,
        pids=16_384,
        open_files=65_536,
        shm=ByteSize(GIB),
        workspace=ByteSize(40 * GIB),
    ),
}


def find_profile(name: str, own: Mapping[str, Profile]) -> Profile:
    """The profile of a name; a user's own go before the built-in ones.

    Raises:
        UnknownProfile: there is none.
    """
    profile = own.get(name) or BUILT_IN.get(name)
    if profile is None:
        raise UnknownProfile(f"there is no profile {name!r}; known: {', '.join(sorted({*BUILT_IN, *own}))}")
    return profile


def shown_bytes(size: int) -> str:
    """A size as people write it: `512 MiB`, `2 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
