"""All metrics of a `sandhog serve`, as text: sessions, cluster → **served** → `/metrics`."""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.metrics.cluster import cluster_families
from coordinator.metrics.sessions import SECONDS, SessionMetrics
from coordinator.service.box_canary import BoxCanary
from coordinator.service.sessions import Sessions

STATUSES = ("queued", "running", "waiting", "idle")


class ServedMetrics:
    """The metrics of one server, with a registry of their own.

    Args:
        service: Whose sessions are watched from now on.
        canary: Its canary; None where no canary call is made.
    """

    def __init__(self, service: Sessions, canary: BoxCanary | None) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        known = service.cluster.registry
        sessions = SessionMetrics(self._registry, lambda name: known.get(name) is not None)
        service.floor.watchers.append(sessions.watch)
        waits = Histogram(
            "sandhog_lane_wait_seconds",
            "From a call's wish for a lane to having it; a chain takes one for all of its calls.",
            buckets=SECONDS,
            registry=self._registry,
        )
        service.cluster.executor.on_lane = waits.observe
        self._registry.register(_Process(service, canary))
        self._scrape = asyncio.Lock()

    async def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        # One at a time: each asks Redis.
        async with self._scrape:
            found = await cluster_families(self._service.cluster)
        return generate_latest(self._registry) + generate_latest(_Found(found))


class _Found(Collector):
    """What was found already, in the form that is rendered."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield from self._found


class _Process(Collector):
    """What this process knows without asking anybody."""

    def __init__(self, service: Sessions, canary: BoxCanary | None) -> None:
        self._service = service
        self._canary = canary

    def collect(self) -> Iterator[Metric]:
        statuses = self._service.floor.statuses()
        family = GaugeMetricFamily("sandhog_sessions", "Sessions that wait or run here.", labels=["status"])
        for status in STATUSES:
            family.add_metric([status], statuses[status])
        yield family
        limiter = self._service.floor.limiter
        yield GaugeMetricFamily("sandhog_model_requests_in_flight", "Requests under way.", limiter.in_flight)
        yield GaugeMetricFamily("sandhog_model_requests_waiting", "Requests that wait for a place.", limiter.waiting)
        yield GaugeMetricFamily("sandhog_model_places", "Requests that may be under way now.", limiter.places)
        yield CounterMetricFamily("sandhog_model_refusals", "Answers that said: too much.", limiter.refusals)
        yield CounterMetricFamily("sandhog_model_wait_seconds", "Waits for a place, in all.", limiter.waited_s)
        if self._canary is not None:
            yield GaugeMetricFamily(
                "sandhog_canary_up", "Whether the last canary call came back.", self._canary.is_well
            )
            yield GaugeMetricFamily("sandhog_canary_seconds", "How long it took.", self._canary.took_s)
            yield GaugeMetricFamily("sandhog_canary_age_seconds", "Since it ended.", self._canary.age_s)
