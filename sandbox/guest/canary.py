"""Run as a command in a box made to be tried: goes one step over each limit and prints what happened as JSON.

Arguments: the names of the tries, then how far each may go at most. Not part of the guest.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = b"\0" * 65_536
BUSY_S = 0.5
BUSY_PROCESSES = 2
GAP_NS = 2_000_000
"""A step of the clock beyond this means that the process stood still."""
MEMORY_STEP_BYTES = 4 * 1024 * 1024


def open_files(most: int) -> int:
    """How many descriptors a process can have."""
    opened: list[int] = []
    try:
        while len(opened) < most:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return max(opened, default=2) + 1
    finally:
        for fd in opened:
            os.close(fd)
    return most


def bytes_in(directory: str) -> Callable[[int], int]:
    """How much can be written below the directory."""

    def fill(most: int) -> int:
        path = f"{directory}/.sandhog-canary"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        written = 0
        try:
            while written < most:
                written += os.write(fd, CHUNK)
        except OSError:
            return written
        finally:
            os.close(fd)
            os.unlink(path)
        return written

    return fill


def tasks(most: int) -> int:
    """How many processes can be had beside this one."""
    held, release = os.pipe()
    children: list[int] = []
    try:
        while len(children) < most:
            child = os.fork()
            if child == 0:
                os.close(release)
                os.read(held, 1)
                os._exit(0)
            children.append(child)
    except OSError:
        return len(children)
    finally:
        os.close(release)
        for child in children:
            os.waitpid(child, 0)
    return len(children)


def cpu_share(_: int) -> float:
    """How many processors' worth of time several busy processes get."""
    counted, count = os.pipe()
    began = time.monotonic_ns()
    for _number in range(BUSY_PROCESSES):
        if os.fork() == 0:
            os.write(count, b"%020d" % busy_ns())
            os._exit(0)
    for _number in range(BUSY_PROCESSES):
        os.wait()
    wall_ns = time.monotonic_ns() - began
    return sum(int(os.read(counted, 20)) for _number in range(BUSY_PROCESSES)) / wall_ns


def busy_ns() -> int:
    """For how long of `BUSY_S` this process really ran: what a kernel counts is not to be relied on in a sandbox."""
    began = last = time.monotonic_ns()
    ran = 0
    while last - began < BUSY_S * 1e9:
        now = time.monotonic_ns()
        if now - last < GAP_NS:
            ran += now - last
        last = now
    return ran


def memory(most: int) -> int:
    """How much memory one process can fill; it is killed where there is less."""
    held: list[bytearray] = []
    try:
        while len(held) * MEMORY_STEP_BYTES < most:
            # Not zeros: a page of zeros could be shared.
            held.append(bytearray(b"\x5a") * MEMORY_STEP_BYTES)
    except MemoryError:
        pass
    return len(held) * MEMORY_STEP_BYTES


def gains_privileges(_: int) -> int:
    """1 when a program that belongs to root and is marked set-uid runs as root, 0 when not or when there is none."""
    path = "/workspace/set-uid-id"
    if not os.path.exists(path):
        return 0
    seen, see = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(see, 1)
        os.execv(path, [path, "--no-config", "--no-mmap", "-N", "-I", "^Uid:", "/proc/self/status"])
    os.close(see)
    os.waitpid(child, 0)
    words = os.read(seen, 200).split()
    return int(len(words) > 2 and words[2] == b"0" and words[1] != b"0")


TRIES: dict[str, Callable[[int], float]] = {
    "open_files": open_files,
    "shm": bytes_in("/dev/shm"),
    "tmp": bytes_in("/tmp"),
    "home": bytes_in("/home/agent"),
    "pids": tasks,
    "cpus": cpu_share,
    "no_new_privileges": gains_privileges,
    "memory": memory,
}


def main() -> None:
    """argv: `name=most` for each try."""
    found: dict[str, float | str] = {}
    for argument in sys.argv[1:]:
        name, _, most = argument.partition("=")
        try:
            found[name] = TRIES[name](int(most))
        except OSError as error:
            found[name] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
