"""What a node does again and again beside its calls: end idle boxes, sweep, keep images and guest folders in bounds."""

import logging
import threading
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


class Upkeep:
    """Runs jobs in turn, from a thread of its own until it is closed; a job that fails is run again the next time."""

    def __init__(self, jobs: Mapping[str, Callable[[], object]], every_s: float) -> None:
        self._jobs = dict(jobs)
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="upkeep", daemon=True)

    def add(self, name: str, job: Callable[[], object]) -> None:
        """Run one more job, before the others begin."""
        self._jobs[name] = job

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a job under way is waited for."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        while not self._closed.is_set():
            for name, job in self._jobs.items():
                try:
                    job()
                except Exception as exc:
                    # The engine or the disk may be back by the next round.
                    log.warning("upkeep failed", extra={"job": name, "error": f"{type(exc).__name__}: {exc}"})
                if self._closed.is_set():
                    return
            self._closed.wait(self._every_s)
