"""Starting a node's process anew in its place: the same process id, owner and settings, no thread of before."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

DRAIN_S = 30.0
POLL_S = 0.1


class Anew:
    """Ends what can be ended, then replaces the process; its boxes live on and are adopted by its next life."""

    def __init__(self, drain: Callable[[], None], running: Callable[[], int], let_go: Callable[[], None]) -> None:
        """`drain` says that nothing new is taken, `running` counts the calls that may still end, `let_go` closes what
        the process must not leave behind, boxes excepted."""
        self._drain = drain
        self._running = running
        self._let_go = let_go

    def begin(self) -> None:
        """Begin; comes back at once."""
        threading.Thread(target=self._run, name="anew", daemon=True).start()

    def _run(self) -> None:
        log.error("the node is started anew")
        self._drain()
        deadline = time.monotonic() + DRAIN_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        try:
            self._let_go()
        except Exception:
            # The next life sweeps what is left.
            log.exception("not everything could be let go")
        replace_process()


def replace_process() -> None:
    """Start this process's command again in its place; descriptors that were passed to it stay."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)
