"""Whether the controls that were asked for hold, as seen from inside the box."""

from collections.abc import Iterator

from sandbox.errors import ControlNotEnforced
from sandbox.requests import GuestInfo
from sandbox.spec import BoxSpec
from sandbox.wire import RG

PROBE_ARGV = (
    RG, "--no-config", "--no-mmap", "-N", "-I", "^(Uid|Gid|CapEff|NoNewPrivs|Seccomp|Max open files)",
    "/proc/self/status", "/proc/self/limits",
)  # fmt: skip
"""Run as a command: prints what holds for commands."""

ROOT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7
"""CHOWN, KILL, SETGID, SETUID: what commands keep when they run as root."""


def check(spec: BoxSpec, info: GuestInfo, probe: str) -> None:
    """Prove every control.

    Raises:
        ControlNotEnforced: the first that does not hold and is not in `spec.allow_weak`.
    """
    for control, detail in _failures(spec, info, probe):
        if control not in spec.allow_weak:
            raise ControlNotEnforced(control, detail)


def _failures(spec: BoxSpec, info: GuestInfo, probe: str) -> Iterator[tuple[str, str]]:
    yield from _of_commands(spec, probe)
    yield from _of_limits(spec, info)
    if info.facts.get("interfaces") != "lo":
        yield "network", f"the box has the interfaces {info.facts.get('interfaces')!r}"
    for mount, wanted in (("guest_folder", "ro"), ("spill", "ro"), ("workspace", "rw")):
        found = info.facts.get(f"{mount}_mount")
        if found != wanted:
            yield mount, f"mounted {found}, not {wanted}"


def _of_commands(spec: BoxSpec, probe: str) -> Iterator[tuple[str, str]]:
    seen = {}
    for line in probe.splitlines():
        words = line.replace("Max open files", "Files:").replace(":", " ").split()
        if len(words) > 1:
            seen[words[0]] = words[1]
    for name, wanted in (("Uid", spec.uid), ("Gid", spec.gid)):
        if seen.get(name) != str(wanted):
            yield "user", f"commands run with {name} {seen.get(name)}, not {wanted}"
    allowed = ROOT_CAPABILITIES if spec.uid == 0 else 0
    capabilities = seen.get("CapEff", "")
    if not capabilities or int(capabilities, 16) & ~allowed:
        yield "capabilities", f"commands have {capabilities}"
    if seen.get("NoNewPrivs") != "1":
        yield "no_new_privileges", "commands can gain privileges"
    if seen.get("Seccomp") != "2":
        yield "seccomp", "commands have no system call filter"
    if not 0 < _count(seen.get("Files")) <= spec.limits.open_files:
        yield "open_files", f"commands may open {seen.get('Files')} files"


def _of_limits(spec: BoxSpec, info: GuestInfo) -> Iterator[tuple[str, str]]:
    limits, facts = spec.limits, info.facts
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
    if not 0 < _count(facts.get("shm_bytes")) <= limits.shm_bytes:
        yield "shm", f"/dev/shm has {facts.get('shm_bytes')} bytes"


def _count(text: str | None) -> int:
    """A number of the kernel; -1 when there is none (`max`)."""
    return int(text) if text is not None and text.isdigit() else -1
