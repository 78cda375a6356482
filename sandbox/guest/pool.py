"""A few threads for file work, so that a large file or a slow disk does not hold up the loop."""

import _thread
import os
from _queue import SimpleQueue
from collections.abc import Callable

from sandbox.guest.loop import Loop

THREADS = 4

Job = Callable[[], Callable[[], None]]
"""Runs in a thread; what it gives back runs in the loop."""


class Pool:
    """Runs jobs in threads and hands their results to the loop."""

    def __init__(self, loop: Loop) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.watch(self._wake_fd, self._woken)
        for _ in range(THREADS):
            _thread.start_new_thread(self._work, ())

    def submit(self, job: Job) -> None:
        """Run the job in a thread as soon as one is free."""
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._done.put(self._jobs.get()())
            os.eventfd_write(self._wake_fd, 1)

    def _woken(self, _: int) -> None:
        os.eventfd_read(self._wake_fd)
        while not self._done.empty():
            self._done.get()()
