"""What an engine says of itself, and which of its faults are known: for who looks after a machine."""

import re
from dataclasses import dataclass
from typing import Any

import docker
from docker.utils import kwargs_from_env

from sandbox.container import translated

TIMEOUT_S = 20
Version = tuple[int, ...]


@dataclass(frozen=True)
class EngineReport:
    """An engine, as it answers now."""

    version: str
    parts: dict[str, str]
    """Versions of what it is made of, by small names: engine, containerd, runc, docker-init."""
    runtimes: tuple[str, ...]
    data_dir: str
    control_groups: str
    """1 or 2."""


@dataclass(frozen=True)
class KnownFault:
    """A fault of some versions of one part."""

    part: str
    mended_in: tuple[str, ...]
    """The first version of each line that does not have it, in order; lines below the first one all have it."""
    words: str
    only: tuple[str, ...] = ()
    """Where not empty, just these versions have it."""

    def has(self, version: str) -> bool:
        """Return whether a version has it; one that cannot be read is taken not to."""
        found = parse_version(version)
        if not found:
            return False
        if self.only:
            return found in [parse_version(one) for one in self.only]
        mended = [parse_version(one) for one in self.mended_in]
        of_line = [one for one in mended if one[:2] == found[:2]]
        return found < of_line[0] if of_line else found < mended[-1]


KNOWN_FAULTS = (
    KnownFault("runc", ("1.1.12",), "an image or command can reach the host's files (CVE-2024-21626)"),
    KnownFault(
        "runc",
        ("1.2.8", "1.3.3", "1.4.0"),
        "what is mounted over /proc can be redirected (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)",
    ),
    KnownFault("runc", (), "commands in running boxes fail once systemd has been reloaded", only=("1.1.3",)),
    KnownFault("containerd", ("1.6.38", "1.7.27", "2.0.4"), "an image's user may become root (CVE-2024-40635)"),
    KnownFault(
        "engine",
        ("23.0.11", "25.0.5", "26.0.0"),
        "names asked in internal networks leave the machine (CVE-2024-29018); boxes of Sandhog have no such network",
    ),
)
"""Source: the security advisories of opencontainers/runc, containerd/containerd and moby/moby."""


def read_report(base_url: str | None = None) -> EngineReport:
    """Return what the engine says.

    Raises:
        EngineUnavailable: it cannot be reached.
    """
    with translated("connection to the engine"):
        options = {"base_url": base_url} if base_url else kwargs_from_env()
        client = docker.APIClient(version="auto", timeout=TIMEOUT_S, **options)
        try:
            version: dict[str, Any] = client.version()
            info: dict[str, Any] = client.info()
        finally:
            client.close()
    parts = {str(part["Name"]).lower(): str(part["Version"]) for part in version.get("Components") or ()}
    return EngineReport(
        version=str(info.get("ServerVersion", "")),
        parts=parts,
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        data_dir=str(info.get("DockerRootDir") or "/"),
        control_groups=str(info.get("CgroupVersion") or "1"),
    )


def faults_of(parts: dict[str, str]) -> list[tuple[str, str, KnownFault]]:
    """Return the known faults that an engine's parts have: part, version, fault."""
    return [
        (fault.part, parts[fault.part], fault)
        for fault in KNOWN_FAULTS
        if fault.part in parts and fault.has(parts[fault.part])
    ]


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version; none where there are none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()
