"""The cluster as Redis has it at the moment of a scrape: store → **cluster** → served.

A Redis that does not answer is told as `sandhog_redis_up 0`; all that would have come from it is left out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.store import NodeUse, NodeView
from worker.contract.breaker import Phase

log = logging.getLogger(__name__)

READ_S = 4.0
"""A scrape waits for Redis no longer; scrapers give up after ten seconds as a rule."""


async def cluster_families(cluster: Cluster) -> list[Metric]:
    """Return what Redis says now."""
    try:
        async with asyncio.timeout(READ_S):
            families = await _read(cluster)
    except (RedisError, OSError, TimeoutError) as exc:
        log.warning("Redis does not answer a scrape", extra={"error": str(exc)})
        return [_gauge("sandhog_redis_up", "Whether Redis answered this scrape.", 0)]
    return [_gauge("sandhog_redis_up", "Whether Redis answered this scrape.", 1), *families]


async def _read(cluster: Cluster) -> list[Metric]:
    nodes = await cluster.store.nodes()
    use = await cluster.store.use_of([view.life.node for view in nodes])
    waiting = await cluster.requests.waiting()
    phases = Counter(one.phase for one in await cluster.breakers.every())
    families = [*_of_nodes(nodes, use)]
    families.append(_gauge("sandhog_approvals_waiting", "Calls about which a person is asked.", len(waiting)))
    breakers = GaugeMetricFamily("sandhog_breakers", "Breakers that have something to tell.", labels=["phase"])
    for phase in Phase:
        breakers.add_metric([phase.value], phases[phase])
    families.append(breakers)
    if cluster.replies is not None:
        lag_s = await cluster.replies.lag_s()
        families.append(_gauge("sandhog_reply_lag_seconds", "Age of the oldest outcome not read yet.", lag_s))
    return families


def _of_nodes(nodes: Sequence[NodeView], use: Sequence[NodeUse]) -> Iterator[Metric]:
    states = Counter(view.life.state if view.is_leased else "away" for view in nodes)
    family = GaugeMetricFamily("sandhog_nodes", "Nodes by state; those away have no lease.", labels=["state"])
    for state in ("ready", "draining", "away"):
        family.add_metric([state], states[state])
    yield family
    kinds = {
        "sandhog_node_places": ("Room for boxes.", [view.life.places for view in nodes]),
        "sandhog_node_places_used": ("Places that sessions hold.", [one.places for one in use]),
        "sandhog_node_lanes": ("Worker threads for calls.", [view.life.lanes for view in nodes]),
        "sandhog_node_lanes_used": ("Lanes that calls hold.", [one.lanes for one in use]),
    }
    for name, (words, values) in kinds.items():
        family = GaugeMetricFamily(name, words, labels=["node"])
        for view, value in zip(nodes, values, strict=True):
            family.add_metric([view.life.node], value)
        yield family
    family = GaugeMetricFamily("sandhog_node_lease_age_seconds", "Since a node renewed its lease.", labels=["node"])
    for view, one in zip(nodes, use, strict=True):
        if one.lease_age_s is not None:
            family.add_metric([view.life.node], one.lease_age_s)
    yield family


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value)
