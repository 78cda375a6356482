"""A node's canary: a message through its own queue, again and again: wiring → **canary** → anew.

A worker may be connected and have its lease, and consume nothing: its reader hangs in a connection that is dead without
a word. Nobody else can tell that from a worker without work. So the node sends itself messages, and when none of them
comes through while Redis answers, it begins a new life.
"""

import logging
import threading
from collections.abc import Callable

from celery import Celery

from worker.contract import keys

log = logging.getLogger(__name__)

CANARY_TASK = "sandhog.canary"
TICK_S = 1.0


class Canary:
    """Sends messages from a thread of its own until it is closed, and looks whether they come through.

    Args:
        send: Sends one message to the node's own queue; may raise anything.
        is_reachable: Whether Redis answers now.
        is_full: Whether every thread of the node is taken: a message that waits for one says nothing.
        on_stuck: Called once, when nothing has come through for `limit_s`.
        every_s: Between two messages.
        limit_s: How long none may come through. It is counted in looks of this thread, so that time in which the
            whole process, or Redis, stood still does not count.
    """

    def __init__(
        self,
        *,
        send: Callable[[], None],
        is_reachable: Callable[[], bool],
        is_full: Callable[[], bool],
        on_stuck: Callable[[], None],
        every_s: float,
        limit_s: float,
        tick_s: float = TICK_S,
    ) -> None:
        self._send = send
        self._is_reachable = is_reachable
        self._is_full = is_full
        self._on_stuck = on_stuck
        self._every_s = every_s
        self._limit_s = limit_s
        self._tick_s = min(tick_s, every_s)
        self._waited_s = 0.0
        self._is_stuck = False
        self._arrived = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="canary", daemon=True)

    @property
    def waited_s(self) -> float:
        """For how long messages have been awaited of which none came through; 0 after one did."""
        return self._waited_s

    @property
    def is_well(self) -> bool:
        """Whether messages come through, as far as is known."""
        return self._waited_s < max(self._limit_s / 2, self._every_s + 2 * self._tick_s)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send and expect nothing any more; comes back at once."""
        self._closed.set()

    def close(self) -> None:
        """Stop; a message that is just being sent is waited for."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def arrive(self) -> None:
        """Take in that a message came through, of this life or of the one before."""
        self._arrived.set()

    def _keep(self) -> None:
        since_sent_s, has_sent = self._every_s, False
        while not self._closed.is_set():
            if since_sent_s >= self._every_s:
                has_sent, since_sent_s = self._is_sent() or has_sent, 0.0
            if self._closed.wait(self._tick_s):
                return
            since_sent_s += self._tick_s
            self._look(has_sent)

    def _look(self, has_sent: bool) -> None:
        if self._arrived.is_set():
            self._arrived.clear()
            self._waited_s = 0.0
        elif has_sent and self._is_reachable() and not self._is_full():
            self._waited_s += self._tick_s
        if self._waited_s >= self._limit_s and not self._is_stuck:
            self._is_stuck = True
            log.error("nothing comes through the node's own queue", extra={"waited_s": self._waited_s})
            self._on_stuck()

    def _is_sent(self) -> bool:
        try:
            self._send()
        except Exception as exc:
            # Whatever the broker raises: the thread must go on, or the node would be well for ever.
            log.info("a canary was not sent", extra={"error": f"{type(exc).__name__}: {exc}"})
            return False
        return True


def sender(app: Celery, node: str, expires_s: float) -> Callable[[], None]:
    """Return what sends a canary to a node's own queue."""

    def send() -> None:
        signature = app.signature(CANARY_TASK, immutable=True)
        signature.apply_async(queue=keys.queue(node), expires=expires_s, ignore_result=True)

    return send
