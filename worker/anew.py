"""The end of one life of a node that another is to follow: its boxes live on and are adopted by the next.

Either in its place, with the same process id, owner and settings and no thread of before, or by whoever starts it
again.
"""

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
        self._has_begun = threading.Lock()

    def begin(self) -> None:
        """Begin to start anew in this place; comes back at once."""
        log.error("the node is started anew")
        self._begin(replace_process)

    def hand_over(self, last: Callable[[], None]) -> None:
        """Begin to end for another process to follow, such as a newer version, after `last`; comes back at once."""

        def finish() -> None:
            last()
            os._exit(0)

        log.warning("the node hands its boxes over to its next life")
        self._begin(finish)

    def _begin(self, finish: Callable[[], None]) -> None:
        if self._has_begun.acquire(blocking=False):
            threading.Thread(target=self._run, args=(finish,), name="anew", daemon=True).start()

    def _run(self, finish: Callable[[], None]) -> None:
        self._drain()
        deadline = time.monotonic() + DRAIN_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        try:
            self._let_go()
        except Exception:
            # The next life sweeps what is left.
            log.exception("not everything could be let go")
        finish()


def replace_process() -> None:
    """Start this process's command again in its place; descriptors that were passed to it stay."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)
