"""`python -m worker.mcp.launch HOME COMMAND ARGUMENT…`: becomes a user that nothing else is, then that command."""

import ctypes
import os
import resource
import sys
from contextlib import suppress

from worker.own_wire import own_uid

PR_SET_NO_NEW_PRIVS = 38
PROCESSES = 512
NOT_STARTED = 127


def main() -> None:
    """Give up all rights and become the command."""
    home, *command = sys.argv[1:]
    try:
        _give_up_rights(home)
        os.execvpe(command[0], command, os.environ)
    except OSError as exc:
        print(f"{command[0]} cannot be started on this node: {exc}", file=sys.stderr, flush=True)
        os._exit(NOT_STARTED)


def _give_up_rights(home: str) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        # When memory runs out, a server goes before the node and its boxes.
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        uid = own_uid(os.getpid())
        # Counted by user: without one of its own, the server would be held to what all of the node's run.
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        os.chown(home, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")
    os.chdir(home)


if __name__ == "__main__":
    main()
