"""The event loop of a node's MCP clients, in the one thread that owns it."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")

END_S = 10.0
THREADS = 64


class OwnedLoop:
    """Runs coroutines for callers in other threads; begins with the first one."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Begin work in the loop; cancelling the future cancels it.

        Raises:
            RuntimeError: the loop was closed.
        """
        with self._guard:
            if self._is_closed:
                work.close()
                raise RuntimeError("the node is ending")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # Starts of boxes and servers that do not read hold a thread each.
                self._loop.set_default_executor(ThreadPoolExecutor(THREADS, "mcp"))
                self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs and end the thread. Idempotent."""
        with self._guard:
            loop, thread, self._is_closed = self._loop, self._thread, True
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(END_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S)
        if not thread.is_alive():
            loop.close()


async def _end_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_S / 2)
