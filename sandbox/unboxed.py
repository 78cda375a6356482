"""Spawner and guest as plain processes of this machine, for `process_engine`: `python -m sandbox.unboxed ROLE PLACE`.

The same spawner, guest and wire as in a box; what differs is set here before the guest is imported: where the box's
directories are, how a call's processes are known (see `process_marks`), and that nobody becomes another user.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import posix
import shutil
import signal
import sys
from typing import Any

from sandbox.guest.spawner import Spawner
from sandbox.process_marks import kill_processes, processes_of, set_mark

PR_SET_CHILD_SUBREAPER = 36


class UnboxedSpawner(Spawner):
    """A spawner that needs no rights: every command runs as the user it runs as."""

    def __init__(self, number: int, dead_man_s: int) -> None:
        super().__init__(0, 0, dead_man_s)
        self.number = number

    def enter(self, cwd: bytes) -> None:
        """Go to the directory."""
        posix.chdir(cwd)

    def mark(self, groups: list[int]) -> None:
        """Mark what is forked next."""
        set_mark(self.number, *groups)


def main() -> None:
    """argv: `spawner` or `guest`, the box's place as JSON, and for the guest the descriptor of its pair."""
    place = json.loads(sys.argv[2])
    if sys.argv[1] == "spawner":
        spawn(place)
    else:
        serve(place, int(sys.argv[3]))


def spawn(place: dict[str, Any]) -> None:
    """Be the box's main process; nothing of the box outlives it."""
    number = place["number"]
    set_mark(number)
    # As the init of a box: who loses its parent becomes ours, and is reaped.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spawner = UnboxedSpawner(number, place["dead_man_s"])
    signal.signal(signal.SIGALRM, lambda *_: end_for_good(place))
    command = [sys.executable, "-S", "-m", "sandbox.unboxed", "guest", sys.argv[2]]
    spawner.start_guest([os.fsencode(word) for word in command])
    spawner.serve()
    end(number, spawner.exit_code & 255)


def end(number: int, code: int) -> None:
    """End the box with all its commands; the guest ends by itself when this process does."""
    kill_processes(number, is_own_spared=True)
    os._exit(code)


def end_for_good(place: dict[str, Any]) -> None:
    """End a box that nobody holds any more: nobody else would remove its folder."""
    kill_processes(place["number"], is_own_spared=True)
    shutil.rmtree(place["folder"], ignore_errors=True)
    os._exit(1)


def serve(place: dict[str, Any], spawner_fd: int) -> None:
    """Be the box's guest."""
    number = place["number"]
    wire = importlib.import_module("sandbox.wire")
    wire.WORKSPACE, wire.SPILL, wire.HOME = place["workspace"], place["spill"], place["home"]  # type: ignore[attr-defined]
    wire.SOCKET_PATH = place["socket"]  # type: ignore[attr-defined]
    processes = importlib.import_module("sandbox.guest.processes")
    processes.marked_processes = lambda: (marked_processes(number), 0)  # type: ignore[attr-defined]
    # The counter of whatever this machine is says nothing of the box, so its processes are always looked for.
    processes.Kernel.task_count = lambda _: None
    guest = importlib.import_module("sandbox.guest.__main__")
    os.set_inheritable(spawner_fd, False)
    listener = guest.listen()
    os.umask(0o022)
    os.chdir("/")
    guest.Server(listener, spawner_fd, place["freeze_s"]).run()


def marked_processes(number: int) -> dict[int, list[int]]:
    """Living processes of the box's commands by their marker."""
    found = processes_of(number)
    found.pop(number, None)
    # The spawner bears the marker of a command while it forks it.
    spawner = os.getppid()
    return {marker: [pid for pid in pids if pid != spawner] for marker, pids in found.items() if pids != [spawner]}


if __name__ == "__main__":
    main()
