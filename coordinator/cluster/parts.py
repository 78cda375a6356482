"""The shared parts that sessions of one process use."""

from dataclasses import dataclass
from pathlib import Path

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.counts import Counts
from coordinator.cluster.execute import Executor
from coordinator.cluster.ownership import Ownership
from coordinator.cluster.placement import Placement
from coordinator.cluster.store import Store
from coordinator.cluster.turns import Turns
from coordinator.cluster.wishes import Wishes
from coordinator.session.breakers import Breakers
from tools.registry import Registry


@dataclass(frozen=True)
class Cluster:
    """What sessions of one process share."""

    store: Store
    executor: Executor
    placement: Placement
    registry: Registry
    state_dir: Path
    requests: Requests
    breakers: Breakers
    ownership: Ownership
    wishes: Wishes
    turns: Turns
    counts: Counts
    replies: ReplyReader | None = None
    """For those who watch; None where nobody does."""
