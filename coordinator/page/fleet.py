"""The whole cluster at a glance: Redis, index → **fleet** → template."""

from collections import Counter
from dataclasses import dataclass

from coordinator.cluster.store import NodeUse, NodeView
from coordinator.service.entries import Entry
from coordinator.service.facts import ENDED, Status
from coordinator.service.principals import Principal
from coordinator.service.sessions import Filter, Sessions
from coordinator.service.views import SessionView
from coordinator.session.breakers import Listed

MOST = 1_000_000
QUEUE_ROWS = 50


@dataclass(frozen=True)
class Node:
    """A node and what is taken of it."""

    view: NodeView
    use: NodeUse

    @property
    def state(self) -> str:
        """ready, drained, draining or gone."""
        return self.view.state if self.view.is_leased else "gone"


@dataclass(frozen=True)
class Fleet:
    """What runs, on what, and what waits."""

    nodes: list[Node]
    places: tuple[int, int]
    """Taken and there, of the nodes that are alive."""
    lanes: tuple[int, int]
    sessions: dict[Status, int]
    """How many that have not ended are in each state; of those that the visitor may know of."""
    queue: list[SessionView]
    """Those that wait for their turn, the first ones."""
    queued: int
    breakers: list[Listed]
    why_not_ready: str | None


async def fleet_for(sessions: Sessions, principal: Principal) -> Fleet:
    """Return the cluster as a principal may see it.

    Raises:
        RedisError: Redis does not answer.
    """
    store = sessions.cluster.store
    views = await store.nodes()
    uses = await store.use_of([view.life.node for view in views])
    nodes = [Node(view, use) for view, use in zip(views, uses, strict=True)]
    alive = [node for node in nodes if node.view.is_leased]
    wanted = Filter(principal="*" if principal.allowance.is_operator else principal.name)
    entries, _ = await sessions.page(principal, wanted, limit=MOST, after=None)
    live = [entry for entry in entries if entry.facts.status not in ENDED]
    queue = [sessions.view(entry) for entry in reversed(live) if entry.facts.status == "queued"]
    queue.sort(key=lambda view: view.position or MOST)
    return Fleet(
        nodes=nodes,
        places=(sum(node.use.places for node in alive), sum(node.view.life.places for node in alive)),
        lanes=(sum(node.use.lanes for node in alive), sum(node.view.life.lanes for node in alive)),
        sessions=dict(Counter(entry.facts.status for entry in live)),
        queue=queue[:QUEUE_ROWS],
        queued=len(queue),
        breakers=_seen(await sessions.cluster.breakers.every(), principal, live),
        why_not_ready=await sessions.ready(),
    )


def _seen(breakers: list[Listed], principal: Principal, live: list[Entry]) -> list[Listed]:
    own = {entry.session_id for entry in live}
    return [one for one in breakers if one.scope == "node" or one.name in own or principal.allowance.is_operator]
