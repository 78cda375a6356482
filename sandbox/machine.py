"""What the engine says of itself and its machine, asked once: engine → **machine** → creation, proofs."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.errors import SandboxError

UNSUPPORTED = {
    "userns": "it maps user ids (userns-remap), so that files would come to belong to other users than the box's",
    "rootless": "it runs without root, so that files would come to belong to other users than the box's",
    "selinux": "it separates containers by SELinux, and the labels of bound directories would have to be changed",
}
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's names for the engine's."""


class UnsupportedEngine(SandboxError):
    """The engine answers, but boxes cannot be had from it as it is set up."""


@dataclass(frozen=True)
class Machine:
    """The engine's machine."""

    engine_id: str
    """Tells engines on one volume apart."""
    engine_version: str
    kernel: str
    """Release of the host's kernel."""
    architecture: str
    """As `uname -m` says it."""
    cpus: int
    data_dir: Path
    """Where the engine keeps images and containers."""
    options: frozenset[str]
    """The engine's security options by name: seccomp, apparmor, userns, rootless, selinux, …"""
    runtimes: tuple[str, ...] = ()
    """Names of its OCI runtimes, sorted."""
    host: str = ""
    """Tells this machine from others, also from copies of it: directories of the one are not on the other."""


def parse_machine(info: dict[str, Any]) -> Machine:
    """Read the engine's own description (`docker info`)."""
    options = [str(option) for option in info.get("SecurityOptions") or []]
    architecture = str(info.get("Architecture", ""))
    return Machine(
        engine_id=str(info.get("ID", "")),
        engine_version=str(info.get("ServerVersion", "")),
        kernel=str(info.get("KernelVersion", "")),
        architecture=ARCHITECTURES.get(architecture, architecture),
        cpus=int(info.get("NCPU") or 1),
        data_dir=Path(info.get("DockerRootDir") or "/"),
        options=frozenset(option.removeprefix("name=").partition(",")[0] for option in options),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        host=hashlib.sha256(f"{info.get('ID', '')} {info.get('Name', '')}".encode()).hexdigest()[:16],
    )


def check_supported(machine: Machine, guest_folder: Path) -> None:
    """Refuse an engine that would give boxes other than those asked for.

    Raises:
        UnsupportedEngine: it does; says why and what to do.
    """
    for option, why in UNSUPPORTED.items():
        if option in machine.options:
            raise UnsupportedEngine(f"The Docker engine cannot be used: {why}. Use an engine without that option.")
    built_for = guest_folder.name.rpartition("-")[2]
    if built_for in ARCHITECTURES.values() and machine.architecture != built_for:
        raise UnsupportedEngine(
            f"The Docker engine's machine is {machine.architecture}, and the guest in {guest_folder} was built for "
            f"{built_for}. Run the worker on a machine of the engine's kind: it builds a guest folder of its own."
        )
