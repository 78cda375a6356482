"""Whether the controls that were asked for hold, as seen from inside the box: spec → box → **controls**.

Numbers are read in every box. That a number is also enforced is tried once for an image on a machine: see `proofs`.
"""

from collections.abc import Iterator, Mapping

from sandbox.errors import ControlNotEnforced
from sandbox.requests import GuestInfo
from sandbox.spec import BoxSpec, Limits, Network
from sandbox.wire import RG

PROBE_ARGV = (
    RG, "--no-config", "--no-mmap", "-N", "-I", "^(Uid|Gid|CapEff|NoNewPrivs|Seccomp)", "/proc/self/status",
)  # fmt: skip
"""Run as a command: prints what holds for commands."""

ROOT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7
"""CHOWN, KILL, SETGID, SETUID: what commands keep when they run as root."""
GVISOR_KERNEL = "4.4.0"
"""What gVisor says it is, in every release."""
WEAKENABLE = frozenset(
    {"capabilities", "cpus", "home", "memory", "no_new_privileges", "open_files", "pids", "seccomp", "shm", "swap"}
    | {"tmp"}
)
"""Controls that a profile may do without (`allow_weak`)."""

INSTALL_CAPABILITIES = 1 << 1 | 1 << 3 | 1 << 4
"""DAC_OVERRIDE, FOWNER, FSETID: what root has beyond that where it installs."""


def check(spec: BoxSpec, info: GuestInfo, probe: str) -> None:
    """Prove every control that can be seen in the box.

    Raises:
        ControlNotEnforced: the first that does not hold and is not in `spec.allow_weak`.
    """
    refuse_failed(spec, _failures(spec, info, probe))


def check_tries(spec: BoxSpec, found: Mapping[str, float | str]) -> None:
    """Prove by what the canary found in a box of `spec` that going over each limit fails.

    Raises:
        ControlNotEnforced: the first that did not and is not in `spec.allow_weak`.
    """
    refuse_failed(spec, _of_tries(spec.limits, found))


def refuse_failed(spec: BoxSpec, failures: Iterator[tuple[str, str]]) -> None:
    """Raise for the first failed control that must hold.

    Raises:
        ControlNotEnforced: there is one.
    """
    for control, detail in failures:
        if control not in spec.allow_weak:
            raise ControlNotEnforced(control, detail)


def _failures(spec: BoxSpec, info: GuestInfo, probe: str) -> Iterator[tuple[str, str]]:
    yield from _of_commands(spec, probe)
    yield from _of_limits(spec, info.facts)
    yield from _of_gvisor(spec, info.facts) if spec.is_gvisor else _of_control_groups(spec, info.facts)
    interfaces = info.facts.get("interfaces")
    if spec.network is not Network.OPEN and interfaces != "lo":
        yield "network", f"the box has the interfaces {interfaces!r}"
    for mount, wanted in (("guest_folder", "ro"), ("spill", "ro"), ("workspace", "rw")):
        found = info.facts.get(f"{mount}_mount")
        if found != wanted:
            yield mount, f"mounted {found}, not {wanted}"
    if info.facts.get("door_mount", "") not in ("", "ro"):
        yield "door", f"mounted {info.facts['door_mount']}, not ro"
    most = spec.workspace_size_bytes
    if most is not None and not 0 < _count(info.facts.get("workspace_bytes")) <= most:
        seen = info.facts.get("workspace_bytes")
        detail = f"its file system has {seen} bytes, not {most}: the engine does not see what this worker mounts"
        yield "workspace", f"{detail} (SANDHOG_WORKSPACE_DISKS=false has it watched instead)"


def _of_commands(spec: BoxSpec, probe: str) -> Iterator[tuple[str, str]]:
    seen = {}
    for line in probe.splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1:
            seen[words[0]] = words[1]
    for name, wanted in (("Uid", spec.uid), ("Gid", spec.gid)):
        if seen.get(name) != str(wanted):
            yield "user", f"commands run with {name} {seen.get(name)}, not {wanted}"
    allowed = ROOT_CAPABILITIES if spec.uid == 0 else 0
    if spec.uid == 0 and spec.installs:
        allowed |= INSTALL_CAPABILITIES
    capabilities = seen.get("CapEff", "")
    if not capabilities or int(capabilities, 16) & ~allowed:
        yield "capabilities", f"commands have {capabilities}"
    if spec.is_gvisor:
        # Its kernel shows neither: the one is tried by the canary, the other it is by itself.
        return
    if seen.get("NoNewPrivs") != "1":
        yield "no_new_privileges", "commands can gain privileges"
    if seen.get("Seccomp") != "2":
        yield "seccomp", "commands have no system call filter"


def _of_limits(spec: BoxSpec, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    limits = spec.limits
    if not 0 < _count(facts.get("nofile")) <= limits.open_files:
        yield "open_files", f"commands may open {facts.get('nofile')} files"
    sizes = (("shm", limits.shm_bytes), ("tmp", limits.tmp_size_bytes), ("home", limits.home_size_bytes))
    for place, most in sizes:
        if not 0 < _count(facts.get(f"{place}_bytes")) <= _in_pages(most):
            yield place, f"it has {facts.get(f'{place}_bytes', 'no bound, or an unknown number of')} bytes, not {most}"


def _of_control_groups(spec: BoxSpec, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    limits = spec.limits
    if not 0 < _count(facts.get("pids_max")) <= limits.pids:
        yield "pids", f"the limit inside is {facts.get('pids_max')}"
    if not 0 < _count(facts.get("memory_max")) <= limits.memory_bytes:
        yield "memory", f"the limit inside is {facts.get('memory_max')}"
    has_swap = facts.get("host_swap") != "0 kB"
    if has_swap and not 0 <= _count(facts.get("swap_max")) <= limits.memory_bytes:
        yield "swap", f"the limit inside is {facts.get('swap_max')}"
    quota = f"{facts.get('cpu_quota', '')} {facts.get('cpu_period', '')}".split()
    if len(quota) < 2 or _count(quota[0]) <= 0 or _count(quota[0]) > limits.cpus * _count(quota[1]) * 1.01:
        yield "cpus", f"the quota inside is {' of '.join(quota) or 'not set'}"


def _of_gvisor(spec: BoxSpec, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Its kernel shows the box's memory as the machine's, and counts processes by a limit of each user."""
    limits = spec.limits
    if facts.get("kernel") != GVISOR_KERNEL:
        yield "runtime", f"the kernel inside is {facts.get('kernel')}, not gVisor's"
    if not 0 < _count(facts.get("nproc")) <= limits.pids:
        yield "pids", f"a user may have {facts.get('nproc')} processes"
    total, _, unit = facts.get("memory_total", "").partition(" ")
    if unit != "kB" or not 0 < _count(total) * 1024 <= limits.memory_bytes:
        detail = f"the memory inside is {facts.get('memory_total')}: the runtime ignores control groups"
        yield "memory", detail
        yield "cpus", detail


def _of_tries(limits: Limits, found: Mapping[str, float | str]) -> Iterator[tuple[str, str]]:
    most: dict[str, float] = {
        "open_files": limits.open_files,
        "shm": _in_pages(limits.shm_bytes),
        "tmp": _in_pages(limits.tmp_size_bytes),
        "home": _in_pages(limits.home_size_bytes),
        "pids": limits.pids,
        "cpus": limits.cpus * CPU_TOLERANCE,
        "no_new_privileges": 0,
        "memory": limits.memory_bytes,
    }
    for control, bound in most.items():
        got = found.get(control, "nothing")
        if isinstance(got, str) or got > bound:
            yield control, f"tried in a box that may have {bound:g}, got {got}"


CPU_TOLERANCE = 1.9
"""A quota is given in slices, and a short try may begin and end with a whole one; without a quota it is about 4."""


def _in_pages(size: int) -> int:
    """What the kernel makes of a size: whole pages."""
    return -(-size // 4096) * 4096


def _count(text: str | None) -> int:
    """A number of the kernel; -1 when there is none (`max`)."""
    return int(text) if text is not None and text.isdigit() else -1
