"""A node's life: its lease, and the end it shares with its owner.

The lease says that this incarnation is alive; its absence is never taken as proof of death by anyone.
"""

import logging
import os
import threading
from collections.abc import Callable

import redis

from worker.contract import keys
from worker.contract.orders import NodeLife

log = logging.getLogger(__name__)

RENEW_S = 1.0


class Lease:
    """Renews a node's lease and description from a thread of its own until it is closed."""

    def __init__(self, client: redis.Redis, life: NodeLife) -> None:
        self._redis = client
        self._life = life
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Write the lease once, then keep it renewed.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        self._write()
        self._thread.start()

    def drain(self) -> None:
        """Say that nothing new is taken; what runs goes on under the lease. Idempotent."""
        self._life = self._life.model_copy(update={"state": "draining"})
        try:
            self._write()
        except redis.RedisError as exc:
            log.warning("draining is told with the next renewal", extra={"error": str(exc)})

    def close(self) -> None:
        """Stop renewing and take the lease back, so that nobody waits for it to lapse."""
        self._stop.set()
        self._thread.join(timeout=5)
        try:
            self._redis.delete(keys.lease(self._life.node), keys.node(self._life.node))
            self._redis.srem(keys.NODES, self._life.node)
        except redis.RedisError as exc:
            log.warning("the lease was left to lapse", extra={"error": str(exc)})

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                self._write()
            except redis.RedisError as exc:
                log.warning("the lease was not renewed", extra={"error": str(exc)})

    def _write(self) -> None:
        node = self._life.node
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(keys.lease(node), self._life.incarnation, px=keys.LEASE_MS)
            pipe.set(keys.node(node), self._life.model_dump_json(), ex=keys.NODE_TTL_S)
            pipe.sadd(keys.NODES, node)
            pipe.execute()


def watch_owner(owner_fd: int, on_end: Callable[[], None]) -> threading.Thread:
    """Call `on_end` from a thread once the owner's end of the pipe is closed, by its exit or its death."""

    def wait() -> None:
        while os.read(owner_fd, 1):
            pass
        on_end()

    thread = threading.Thread(target=wait, name="owner-watch", daemon=True)
    thread.start()
    return thread
