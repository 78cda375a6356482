"""What a command that runs sessions has around them: its signals, and a cluster of its own where none is given."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator

from coordinator.embedded import Embedded
from coordinator.ending import end
from coordinator.settings import Settings
from tools.loading import LoadedTools

LOOK_AFTER_S = 0.5
STANDARD_STREAMS = (0, 1, 2)


class Signals:
    """Counts Ctrl-C and SIGTERM: none of them ends the process by itself, so that its clean-up is always whole.

    A terminal that is closed counts as the first of them, however often it says so: nobody is there who is in a hurry.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._terminals = [number for number in STANDARD_STREAMS if os.isatty(number)]
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._came)
        self.take_hang_up(self.first.set)

    def take_hang_up(self, end: Callable[[], None]) -> None:
        """Call `end` from now on when the terminal is closed, unless that is ignored: `nohup`."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up, end)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _hung_up(self, end: Callable[[], None]) -> None:
        # What writes to a terminal that is gone fails, and must not fail the clean-up.
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in self._terminals:
            os.dup2(null, number)
        os.close(null)
        end()


@contextlib.contextmanager
def redis_of(
    settings: Settings, tools: LoadedTools | None, *, places: int | None = None
) -> Iterator[tuple[str, Embedded | None]]:
    """Yield the address of the cluster's Redis, and the embedded cluster where none is given.

    Args:
        settings: Of the command.
        tools: The tools of its sessions.
        places: Sessions that the embedded cluster has room for at once; None is a worker's usual number.

    Raises:
        ConfigError: the embedded cluster cannot be started.
    """
    if settings.redis_url:
        yield settings.redis_url, None
        return
    files = tools.files if tools else ()
    embedded = Embedded(
        settings.state_dir,
        dead_man_s=settings.dead_man_s,
        tools=files,
        secrets_dir=settings.secrets_dir,
        places=places,
    )
    try:
        yield embedded.redis_url, embedded
    finally:
        embedded.close()


@contextlib.asynccontextmanager
async def looked_after(embedded: Embedded | None) -> "AsyncIterator[asyncio.Task[None]]":
    """Yield a task that restarts a dead worker and fails when the embedded cluster cannot be kept up."""

    async def look_after() -> None:
        while True:
            if embedded is not None:
                words = embedded.look_after()
                if words is not None:
                    with contextlib.suppress(OSError, ValueError):
                        print(f"sandhog: {words}", file=sys.stderr)
            await asyncio.sleep(LOOK_AFTER_S)

    task = asyncio.create_task(look_after(), name="look after the worker")
    try:
        yield task
    finally:
        await end(task)
