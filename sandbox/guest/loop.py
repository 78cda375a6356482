"""The guest's event loop: descriptors by epoll, timers by a heap, one thread."""

import heapq
import select
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    """A callback at a time; `cancel` it when it is no longer wanted."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback: Callback | None = callback

    def __lt__(self, other: "Timer") -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self.callback = None


class Loop:
    """Calls back when a descriptor is ready or a time has come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._running = True

    def watch(self, fd: int, callback: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """Call back with the events that came, until `unwatch`."""
        self._watched[fd] = callback
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching; do this before closing the descriptor."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor that is closed right after, and that nobody else has: the kernel then does too."""
        self._watched.pop(fd, None)

    def after(self, delay_s: float, callback: Callback) -> Timer:
        """Call back once in so many seconds."""
        timer = Timer(time.monotonic() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        """Return from `run` after the current round."""
        self._running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._running:
            for fd, events in self._epoll.poll(self._wait_s()):
                callback = self._watched.get(fd)
                if callback is not None:
                    callback(events)
            self._run_timers()

    def _wait_s(self) -> float:
        timers = self._timers
        while timers and timers[0].callback is None:
            heapq.heappop(timers)
        if not timers:
            return -1
        return max(0.0, timers[0].due - time.monotonic())

    def _run_timers(self) -> None:
        timers = self._timers
        while timers and timers[0].due <= time.monotonic():
            callback = heapq.heappop(timers).callback
            if callback is not None:
                callback()
