"""Which processes of the box belong to which call, and what the kernel says of the box."""

import os
import resource
import signal
from contextlib import suppress

from sandbox.wire import DOOR_DIR, HOME, WORKSPACE

MARKER_BASE = 0x40000000
"""A call's marker is a supplementary group from here on: inherited by every child, and no child can drop it."""
BOUNDED_PLACES = (WORKSPACE, "/tmp", HOME, "/dev/shm")
FULL_BYTES = 16 * 1024


def marked_processes() -> tuple[dict[int, list[int]], int]:
    """Living process ids by marker, and how many tasks (threads) have none: our own."""
    found: dict[int, list[int]] = {}
    own_tasks = 0
    spawner = os.getppid()
    for name in os.listdir("/proc"):
        if name[0] in "123456789":
            text = _status_of(name)
            # The spawner bears the marker of a command while it forks it without a switch of user.
            marker = _marker_in(text) if int(name) != spawner else 0
            if marker:
                found.setdefault(marker, []).append(int(name))
            elif text:
                own_tasks += int(_field(text, b"\nThreads:"))
    return found, own_tasks


def _status_of(pid: str) -> bytes:
    """What the kernel says of a living process; empty when it is dead or a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"" if b"\nState:\tZ" in text or b"\nState:\tX" in text else text


def _marker_in(text: bytes) -> int:
    return next((int(group) for group in _field(text, b"\nGroups:").split() if int(group) >= MARKER_BASE), 0)


def _field(text: bytes, name: bytes) -> bytes:
    start = text.find(name)
    return text[start + len(name) : text.find(b"\n", start + 1)] if start >= 0 else b""


def signal_marked(marker: int | None, number: int) -> list[int]:
    """Signal every living process of the marker (None: of any marker); the process ids that were there."""
    found, _ = marked_processes()
    pids = found.get(marker, []) if marker is not None else [pid for group in found.values() for pid in group]
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
    return pids


def kill_marked(marker: int, rounds: int = 200) -> list[int]:
    """SIGKILL until no process of the marker is found; what is left after so many rounds (normally nothing)."""
    left: list[int] = []
    for _ in range(rounds):
        left = signal_marked(marker, signal.SIGKILL)
        if not left:
            break
    return left


class Kernel:
    """Counters and limits of the box's own control group, version 1 or 2; absent ones are None."""

    def __init__(self) -> None:
        self._tasks_fd = _open_first("/sys/fs/cgroup/pids/pids.current", "/sys/fs/cgroup/pids.current")
        self._oom_fd = _open_first("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
        self._pids_events_fd = _open_first("/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/pids.events")

    def task_count(self) -> int | None:
        """Processes and threads in the box, zombies too."""
        if self._tasks_fd is None:
            return None
        return int(os.pread(self._tasks_fd, 32, 0))

    def oom_kills(self) -> int:
        """How many processes were killed for memory since the box began."""
        return _counter(self._oom_fd, b"oom_kill ")

    def refused_tasks(self) -> int:
        """How often a process or thread was not made because the box had as many as it may."""
        return _counter(self._pids_events_fd, b"max ")


def _counter(fd: int | None, name: bytes) -> int:
    if fd is None:
        return 0
    text = b"\n" + os.pread(fd, 512, 0)
    start = text.find(b"\n" + name)
    return int(text[start + 1 + len(name) :].split(None, 1)[0]) if start >= 0 else 0


def full_places() -> list[str]:
    """Which places of the box have no room left for a file of some size."""
    full = []
    for path in BOUNDED_PLACES:
        try:
            size = os.statvfs(path)
        except OSError:
            continue
        if size.f_blocks and size.f_bavail * size.f_frsize < FULL_BYTES:
            full.append(path)
    return full


def _open_first(*paths: str) -> int | None:
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


_FACT_FILES = {
    "pids_max": ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"),
    "memory_max": ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
    "swap_max": ("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "/sys/fs/cgroup/memory.swap.max"),
    "cpu_quota": ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"),
    "cpu_period": ("/sys/fs/cgroup/cpu/cpu.cfs_period_us",),
}


def facts(guest_folder: str, workspace: str, spill: str) -> dict[str, str]:
    """What holds for the box as seen from inside, by name; what cannot be seen is missing."""
    seen = {"kernel": os.uname().release}
    for name, paths in _FACT_FILES.items():
        for path in paths:
            try:
                with open(path, encoding="ascii") as file:
                    seen[name] = file.read(256).strip()
                break
            except OSError:
                continue
    with open("/proc/meminfo", "rb") as meminfo:
        text = meminfo.read()
    seen["host_swap"] = _field(text, b"\nSwapTotal:").strip().decode()
    seen["memory_total"] = _field(b"\n" + text, b"\nMemTotal:").strip().decode()
    with open("/proc/net/dev", encoding="ascii", errors="replace") as file:
        names = [line.split(":")[0].strip() for line in file.readlines()[2:]]
    seen["interfaces"] = " ".join(sorted(names))
    seen["nofile"] = str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    seen["nproc"] = str(resource.getrlimit(resource.RLIMIT_NPROC)[1])
    mounts = _mount_options()
    for name, path in (("guest_folder", guest_folder), ("workspace", workspace), ("spill", spill), ("door", DOOR_DIR)):
        seen[f"{name}_mount"] = mounts.get(path, "").partition(",")[0]
    for name, path in (("shm", "/dev/shm"), ("tmp", "/tmp"), ("home", HOME), ("workspace", workspace)):
        try:
            size = os.statvfs(path)
        except OSError:
            continue
        # What is no mount of its own is as large as the machine's disk: not bounded.
        if path in mounts:
            seen[f"{name}_bytes"] = str(size.f_blocks * size.f_frsize)
    return seen


def _mount_options() -> dict[str, str]:
    """Options of each mount by its path; statvfs shows only the kernel's own, and not every kernel has them."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    return {words[1]: words[3] for words in lines if len(words) > 3}
