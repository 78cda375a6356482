"""What is seen of a node from outside: its metrics, and its canary. Part of the worker's one wiring place."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import redis
from celery import Celery
from celery.worker import state

from worker.boxes import Boxes
from worker.calls import CallEnd
from worker.canary import Canary, sender
from worker.contract.traces import is_traced
from worker.gates.lane import LaneGate
from worker.node import Lease
from worker.settings import NodeSettings


@dataclass(frozen=True)
class Scraped:
    """Where a node's metrics and spans are told."""

    ended: Callable[[CallEnd], None]
    """Counts a call."""
    close: Callable[[], None]


def scraped(
    settings: NodeSettings,
    *,
    boxes: Boxes,
    lanes: LaneGate,
    lease: Lease,
    canary: Canary,
    has_tool: Callable[[str], bool],
) -> Scraped:
    """Return the node's metrics and spans, where settings and the OTEL_* variables want them.

    Raises:
        NodeMisconfigured: the port cannot be had, or others could read it.
    """
    traced = _traced(settings.node)
    if settings.metrics_port is None:
        return traced
    # Not on the way of a command that has a worker of its own.
    from worker.metrics import MetricsServer, NodeFacts, NodeMetrics

    facts = NodeFacts(
        places=settings.places,
        lanes=settings.lane_count,
        calls=lambda: lanes.running,
        lost_lanes=lambda: len(lanes.lost()),
        session_boxes=boxes.used,
        warm_boxes=boxes.warm,
        box_starts=lambda: boxes.starts,
        box_losses=lambda: boxes.losses,
        lease_age_s=lambda: lease.age_s,
        canary_waited_s=lambda: canary.waited_s,
    )
    metrics = NodeMetrics(facts, has_tool)
    token = settings.metrics_token
    address = (settings.metrics_host, settings.metrics_port)
    server = MetricsServer(metrics.registry, address, token.get_secret_value() if token is not None else None)

    def ended(call: CallEnd) -> None:
        metrics.ended(call)
        traced.ended(call)

    def close() -> None:
        server.close()
        traced.close()

    return Scraped(ended, close)


def _traced(node: str) -> Scraped:
    if not is_traced(os.environ):
        return Scraped(lambda end: None, lambda: None)
    from worker.tracing import CallSpans

    spans = CallSpans(node)
    return Scraped(spans.ended, spans.close)


def canary_of(
    settings: NodeSettings, app: Celery, client: redis.Redis, threads: int, on_stuck: Callable[[], None]
) -> Canary:
    """Return the node's canary.

    Args:
        settings: The node's.
        app: Sends the messages.
        client: Asks whether Redis answers.
        threads: How many messages the node works on at once.
        on_stuck: Begins a new life.
    """

    def is_reachable() -> bool:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False

    return Canary(
        send=sender(app, settings.node, settings.canary_limit_s),
        is_reachable=is_reachable,
        is_full=lambda: len(state.active_requests) >= threads,
        on_stuck=on_stuck,
        every_s=settings.canary_s,
        limit_s=settings.canary_limit_s,
    )
