"""What is known about nodes and Redis right now, kept fresh by one task for all sessions of a process.

Suspicion counts only time in which Redis answered: a key that cannot be read says nothing about its writer.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from coordinator.cluster.store import NodeView, Store
from coordinator.ending import end
from worker.contract import keys

log = logging.getLogger(__name__)

EVERY_S = 0.25
"""How late it may be noticed that a node was restarted; its sessions wait so long for its word on what they asked."""
SILENT_S = 3.0
"""Redis is away when its last answer is so old."""
QUIET_S = keys.LEASE_MS / 1000 + 10.0
"""After an outage or in a new life of Redis: how long nobody's missing lease counts. Each writes his own back first."""
LEFT_S = 10.0
"""How long a node that ended in order is waited for: it may be restarted, but nothing of it is left to come back."""
DESCRIBED_S = 1.0
"""How late it may be noticed that a node ends."""
ENDING_S = 900.0
"""A node that ends is waited for no longer: its calls have ended by then, and something else keeps it."""
MOVE_SHARE = 4 / 3
"""A node's sessions may have boxes elsewhere when it has been away this much longer than its own boxes run on."""


@dataclass(frozen=True)
class NodeHealth:
    """One node as last seen."""

    incarnation: str | None
    """The life its lease names; None while it has no lease."""
    leaseless_s: float
    """How long Redis has answered that it has no lease; 0 while it has one."""
    has_left: bool = False
    """It took its description back, as a node does that ends in order."""
    freeze_s: float = 45.0
    """When its boxes stand still, as it said itself."""
    is_ending: bool = False
    """It lives and reads nothing new: soon it has left, or is back in its next life. Never so for very long."""

    @property
    def is_gone(self) -> bool:
        """Whether it has been away longer than a restart takes: nothing more is asked of it."""
        return self.leaseless_s > (LEFT_S if self.has_left else self.freeze_s)

    @property
    def is_lost(self) -> bool:
        """Whether it has been away so long that its sessions may have boxes elsewhere; its calls are given up."""
        return self.leaseless_s > (LEFT_S if self.has_left else MOVE_SHARE * self.freeze_s)


class Watch:
    """Polls leases and Redis' life. Use `async with`."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._health: dict[str, NodeHealth] = {}
        self._run_id: str | None = None
        self._leased_in: dict[str, str] = {}
        """The life of Redis in which each node's lease was seen last."""
        self._ending_since: dict[str, tuple[str, float]] = {}
        """Of each node that says that it ends: the life that does, and when that was seen first."""
        self._described_at = float("-inf")
        self._answered_at: float | None = None
        self._began_at = clock()
        self._quiet_until = float("-inf")
        self._was_away = False
        """The last look had no answer."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watch":
        self._task = asyncio.create_task(self._poll_forever(), name="watch")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await end(self._task)

    def follow(self, node: str, incarnation: str) -> None:
        """Keep an eye on a node from now on."""
        self._health.setdefault(node, NodeHealth(incarnation, 0.0))

    def health(self, node: str) -> NodeHealth:
        """Return the node as last seen; a node that is not followed has no lease."""
        return self._health.get(node, NodeHealth(None, 0.0))

    @property
    def is_redis_answering(self) -> bool:
        """Whether the last poll was answered, and recently."""
        return self._answered_at is not None and self._clock() - self._answered_at < SILENT_S

    @property
    def away_s(self) -> float:
        """How long ago Redis answered the last poll; before the first answer, how long it has been watched."""
        return self._clock() - (self._began_at if self._answered_at is None else self._answered_at)

    @property
    def is_quiet(self) -> bool:
        """Whether Redis may not have yet what all write back after an outage: what it does not know proves nothing."""
        return self._clock() < self._quiet_until

    @property
    def run_id(self) -> str | None:
        """The life of Redis as last seen; None before the first answer."""
        return self._run_id

    async def poll(self) -> None:
        """Look once.

        Raises:
            RedisError: Redis does not answer; what was known stays.
        """
        was_away, self._was_away = self._was_away, True
        run_id = await self._store.run_id()
        leases = await self._store.leases(list(self._health))
        # What a node says of itself is read where its life is another one, or none, and now and then of all.
        changed = {name for name, life in leases.items() if life is None or life != self._health[name].incarnation}
        is_due = self._clock() - self._described_at >= DESCRIBED_S
        self._leased_in.update((name, run_id) for name, life in leases.items() if life is not None)
        views = await self._store.described([name for name in leases if is_due or name in changed])
        self._was_away = False
        now = self._clock()
        self._described_at = now if is_due else self._described_at
        if self._run_id is not None and (run_id != self._run_id or was_away):
            self._quiet_until = now + QUIET_S
        # Time without an answer, and the first moments behind it, count for nobody's death.
        is_counted = self._answered_at is not None and now >= self._quiet_until
        elapsed = now - self._answered_at if self._answered_at is not None and is_counted else 0.0
        for name, view in views.items():
            if view is not None and view.is_leased:
                life, is_ending = view.life, self._is_ending(view, now)
                self._health[name] = NodeHealth(life.incarnation, 0.0, freeze_s=life.freeze_s, is_ending=is_ending)
            elif name in changed:
                before = self._health[name]
                leaseless_s = before.leaseless_s + min(elapsed, SILENT_S)
                freeze_s = before.freeze_s if view is None else view.life.freeze_s
                # A Redis that was emptied has no descriptions either: who was not seen in it may only be cut off.
                has_left = view is None and self._leased_in.get(name) == run_id
                self._health[name] = NodeHealth(None, leaseless_s, has_left=has_left, freeze_s=freeze_s)
        self._run_id, self._answered_at = run_id, now

    def _is_ending(self, view: NodeView, now: float) -> bool:
        if view.life.state != "draining":
            return False
        life, since = self._ending_since.get(view.life.node, ("", now))
        since = since if life == view.life.incarnation else now
        self._ending_since[view.life.node] = (view.life.incarnation, since)
        return now - since < ENDING_S

    async def _poll_forever(self) -> None:
        is_told = False
        while True:
            try:
                await self.poll()
                is_told = False
            except (RedisError, OSError) as exc:
                level = logging.INFO if self._run_id is None else logging.WARNING
                if not is_told:
                    log.log(level, "Redis does not answer", extra={"error": str(exc)})
                is_told = True
            await asyncio.sleep(EVERY_S)
