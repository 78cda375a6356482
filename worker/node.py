"""A node's life: its lease, and the end it shares with its owner.

The lease says that this incarnation is alive; its absence is never taken as proof of death by anyone.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from worker.contract import keys, scripts
from worker.contract.orders import NodeLife

log = logging.getLogger(__name__)

RENEW_S = 1.0
LOST = 3
RENEW = f"""
-- KEYS: lease, description, nodes, drained. ARGV: incarnation, node, description, lease_ms, description_ttl_s, force,
-- the life of Redis that was written to last ("" for any). Returns that which it is, after 1, or 2 when an operator
-- drains the node, or 0 when another life of it holds the lease (unless forced), or 3, with nothing written, when Redis
-- may have lost what was in it: it is another one, or has no lease any more.
local life = {scripts.LIFE}
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and ARGV[6] ~= '1' then return {{0, life}} end
if ARGV[7] ~= '' and (not held or life ~= ARGV[7]) then return {{{LOST}, life}} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[5])
redis.call('SADD', KEYS[3], ARGV[2])
return {{1 + redis.call('SISMEMBER', KEYS[4], ARGV[2]), life}}
"""
RELEASE = """
-- KEYS: lease, description, nodes, places. ARGV: incarnation, node. Takes back what is this life's, nothing of a later
-- one. Nobody has a place on a node that has left: who gives places back looks only at nodes that are there.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
if not held and not string.find(redis.call('GET', KEYS[2]) or '', ARGV[1], 1, true) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[4])
redis.call('SREM', KEYS[3], ARGV[2])
return 1
"""


class Lease:
    """Renews a node's lease and description from a thread of its own until it is closed."""

    def __init__(
        self,
        client: redis.Redis,
        life: NodeLife,
        *,
        on_lapse: Callable[[], None] = lambda: None,
        on_return: Callable[[], None] = lambda: None,
        on_renewed: Callable[[], None] = lambda: None,
        on_drained: Callable[[bool], None] = lambda is_drained: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lapse` is called once the lease has not been renewed for the life's `freeze_s`: soon another node may
        start boxes on these workspaces. `on_return` is called when it is again, and `on_renewed` each time.
        `on_drained` is told when an operator drains the node, and when that is undone. `on_lost` is called before the
        lease is written to a Redis that may have lost what the node had there: until then nobody sends it sessions. It
        may raise `redis.RedisError`: then both are tried again."""
        self._life = life
        self._told = threading.Lock()
        self._on_lapse = on_lapse
        self._on_return = on_return
        self._on_renewed = on_renewed
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._written_to = "none yet"
        self._is_drained = False
        self._freeze_s = life.freeze_s
        self._renewed_at = time.monotonic()
        self._renew = client.register_script(RENEW)
        self._release = client.register_script(RELEASE)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Write the lease once, then keep it renewed.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        # An earlier life's lease may not have lapsed yet.
        self._write(force=True)
        self._thread.start()

    @property
    def age_s(self) -> float:
        """Since it was renewed."""
        return time.monotonic() - self._renewed_at

    @property
    def is_draining(self) -> bool:
        """Nothing new is taken any more."""
        with self._told:
            return self._life.state == "draining"

    def drain(self) -> None:
        """Say that nothing new is taken; what runs goes on under the lease. Idempotent."""
        self.describe(state="draining")
        try:
            self._write()
        except redis.RedisError as exc:
            log.warning("draining is told with the next renewal", extra={"error": str(exc)})

    def describe(self, **facts: Any) -> None:
        """Tell these facts of the node from the next renewal on."""
        with self._told:
            self._life = self._life.model_copy(update=facts)

    def stop(self) -> None:
        """Stop renewing: the lease lapses, and the node's next life is waited for."""
        self._stop.set()
        self._thread.join(timeout=5)

    def close(self) -> None:
        """Stop renewing and take the lease back, so that nobody waits for it to lapse."""
        self.stop()
        try:
            names = [*self._keys, keys.places(self._life.node)]
            self._release(keys=names, args=[self._life.incarnation, self._life.node])
        except redis.RedisError as exc:
            log.warning("the lease was left to lapse", extra={"error": str(exc)})

    def _keep(self) -> None:
        self._renewed_at, has_lapsed = time.monotonic(), False
        while not self._stop.wait(RENEW_S):
            if self._is_renewed():
                self._renewed_at = time.monotonic()
                self._on_renewed()
                if has_lapsed:
                    log.warning("the lease is back")
                    has_lapsed = False
                    self._on_return()
            elif not has_lapsed and self.age_s > self._freeze_s:
                log.warning("the lease has been away for too long", extra={"away_s": self._freeze_s})
                has_lapsed = True
                self._on_lapse()

    def _is_renewed(self) -> bool:
        try:
            if self._write():
                return True
            log.error("another process has this node's name and lease", extra={"node": self._life.node})
        except redis.RedisError as exc:
            log.warning("the lease was not renewed", extra={"error": str(exc)})
        return False

    @property
    def _keys(self) -> list[str]:
        return [keys.lease(self._life.node), keys.node(self._life.node), keys.NODES]

    def _write(self, force: bool = False) -> bool:
        life = self._life
        told = life.model_dump_json()
        arguments = [life.incarnation, life.node, told, str(keys.LEASE_MS), str(keys.NODE_TTL_S), str(int(force))]
        names = [*self._keys, keys.DRAINED]
        held, run_id = self._renew(keys=names, args=[*arguments, self._written_to])
        if held == LOST:
            self._on_lost()
            held, run_id = self._renew(keys=names, args=[*arguments, ""])
        self._written_to = run_id.decode() if isinstance(run_id, bytes) else run_id
        if held and (held == 2) != self._is_drained:
            self._is_drained = held == 2
            log.warning("the node is drained" if self._is_drained else "the node is drained no more")
            self._on_drained(self._is_drained)
        return bool(held)


def watch_owner(owner_fd: int, on_end: Callable[[], None]) -> threading.Thread:
    """Call `on_end` from a thread once the owner's end of the pipe is closed, by its exit or its death."""

    def wait() -> None:
        while os.read(owner_fd, 1):
            pass
        on_end()

    thread = threading.Thread(target=wait, name="owner-watch", daemon=True)
    thread.start()
    return thread


def is_owner_gone(owner_fd: int) -> bool:
    """Return whether the owner's end of the pipe is closed; nothing is ever written to it."""
    return bool(select.select([owner_fd], [], [], 0)[0])
