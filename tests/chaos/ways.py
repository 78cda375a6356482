"""The ways of single parts to Redis, to be cut in one direction: they run beside the harness, in a thread."""

import asyncio
import threading
from pathlib import Path

from tests.cluster.one_sided import OneSided


class Way:
    """One part's own way to Redis, open until it is closed."""

    def __init__(self, socket: Path) -> None:
        self._way = OneSided(socket)
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._is_open = threading.Event()
        self.url = ""
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._is_open.wait()

    def cut(self, *, answers: bool) -> None:
        """Let what Redis answers get lost from now on, or what it is told."""
        self._way.is_cut, self._way.is_mute = answers, not answers

    def heal(self) -> None:
        """Let new connections lose nothing any more; those that there are end."""
        self._loop.call_soon_threadsafe(self._heal)

    def close(self) -> None:
        """Close it for good."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()

    def _heal(self) -> None:
        # A connection of which something is missing in the middle would be no Redis' any more.
        self._way.hang_up()
        self._way.is_cut = self._way.is_mute = False

    async def _serve(self) -> None:
        async with self._way.open() as self.url:
            self._is_open.set()
            await self._closing.wait()
