"""Keeps a coordinator's lease while its event loop is busy.

Hundreds of sessions that begin at once keep the loop for seconds. A coordinator that is busy is not gone, and nobody
shall take its sessions over; one whose loop stands still for long is. The loop itself takes the lease and finds out
that it was lost (`Ownership`); from here it is only made to last longer, and never brought back.
"""

import asyncio
import contextlib
import threading
import time
from types import TracebackType

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from worker.contract import keys

EVERY_S = 0.5
STUCK_S = 10.0
"""A loop that has not come round for so long is as good as gone."""
SILENT_S = 2.0


class LeaseKeeper:
    """Prolongs one coordinator's lease from a thread of its own, within its async context."""

    def __init__(self, redis_url: str, coordinator: str, *, stuck_s: float = STUCK_S) -> None:
        self._client = redis.Redis.from_url(
            redis_url, socket_timeout=SILENT_S, socket_connect_timeout=SILENT_S, retry=Retry(NoBackoff(), 0)
        )
        self._lease = keys.coordinator_lease(coordinator)
        self._stuck_s = stuck_s
        self._came_round_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="coordinator-lease", daemon=True)
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "LeaseKeeper":
        self._ticking = asyncio.create_task(self._tick(), name="coordinator-lease")
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        self._ended.set()
        # What it waits for in Redis ends soon.
        await asyncio.to_thread(self._thread.join, 2 * SILENT_S)
        self._client.close()

    async def _tick(self) -> None:
        while True:
            self._came_round_at = time.monotonic()
            await asyncio.sleep(EVERY_S)

    def _keep(self) -> None:
        while not self._ended.wait(EVERY_S):
            if time.monotonic() - self._came_round_at > self._stuck_s:
                continue
            # Whether Redis answers is found out, and told, by the loop.
            with contextlib.suppress(RedisError, OSError):
                self._client.pexpire(self._lease, keys.COORDINATOR_LEASE_MS)
