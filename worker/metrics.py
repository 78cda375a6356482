"""What a node tells Prometheus: calls, boxes → **metrics** → `/metrics` on a port of its own, off unless it is set.

Labels are bounded: names of tools that the node itself has, error codes, states. Nothing that a model, a guest or a
request says becomes one, and no session's id.
"""

import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from worker.calls import CallEnd
from worker.errors import NodeMisconfigured

log = logging.getLogger(__name__)

OTHER = "other"
WAITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RUNS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
READ_S = 10.0
"""How long a scraper may take over its request."""


@dataclass(frozen=True)
class NodeFacts:
    """What is looked up whenever somebody scrapes."""

    places: int
    lanes: int
    calls: Callable[[], int]
    """Calls under way."""
    lost_lanes: Callable[[], int]
    session_boxes: Callable[[], int]
    warm_boxes: Callable[[], int]
    box_starts: Callable[[], int]
    box_losses: Callable[[], int]
    lease_age_s: Callable[[], float]
    canary_waited_s: Callable[[], float]


class NodeMetrics(Collector):
    """A node's metrics, with a registry of their own.

    Args:
        facts: The node's state.
        has_tool: Whether the node has a tool of that name.
    """

    def __init__(self, facts: NodeFacts, has_tool: Callable[[str], bool]) -> None:
        self.registry = CollectorRegistry()
        self._facts = facts
        self._has_tool = has_tool
        self._queue = Histogram(
            "sandhog_call_queue_seconds",
            "From sending to claim, by two wall clocks.",
            ["tool"],
            buckets=WAITS_S,
            registry=self.registry,
        )
        self._run = Histogram(
            "sandhog_call_run_seconds",
            "From claim to outcome; the outcome is `success`, `partial` or an error code.",
            ["tool", "outcome"],
            buckets=RUNS_S,
            registry=self.registry,
        )
        self._spilled = Counter(
            "sandhog_spill_bytes", "Output of calls that was kept in spill files.", registry=self.registry
        )
        self.registry.register(self)

    def ended(self, call: CallEnd) -> None:
        """Count a call that has its outcome."""
        tool = call.tool if self._has_tool(call.tool) else OTHER
        self._queue.labels(tool).observe(call.queue_s)
        self._run.labels(tool, call.outcome).observe(call.run_s)
        self._spilled.inc(call.spilled_bytes)

    def collect(self) -> Iterator[Metric]:
        """Yield what is looked up now."""
        facts = self._facts
        yield GaugeMetricFamily("sandhog_calls_in_flight", "Calls under way.", facts.calls())
        yield GaugeMetricFamily("sandhog_lanes", "Worker threads for calls.", facts.lanes)
        yield GaugeMetricFamily("sandhog_lanes_lost", "Lanes held longer than their call can take.", facts.lost_lanes())
        yield GaugeMetricFamily("sandhog_places", "Room for boxes.", facts.places)
        boxes = GaugeMetricFamily("sandhog_boxes", "Boxes, by who has them.", labels=["state"])
        boxes.add_metric(["session"], facts.session_boxes())
        boxes.add_metric(["warm"], facts.warm_boxes())
        yield boxes
        yield CounterMetricFamily("sandhog_box_starts", "Boxes that sessions were given.", facts.box_starts())
        yield CounterMetricFamily("sandhog_box_losses", "Boxes that ended under their session.", facts.box_losses())
        yield GaugeMetricFamily("sandhog_lease_age_seconds", "Since the lease was renewed.", facts.lease_age_s())
        yield GaugeMetricFamily(
            "sandhog_canary_waited_seconds", "How long no canary came through the queue.", facts.canary_waited_s()
        )


class MetricsServer:
    """Serves metrics over HTTP from a thread of its own until it is closed.

    Args:
        registry: What is served.
        address: Where to listen; beyond loopback only with a token.
        token: What a scraper must carry as bearer; None where it need not.

    Raises:
        NodeMisconfigured: the address cannot be had, or others could read it.
    """

    def __init__(self, registry: CollectorRegistry, address: tuple[str, int], token: str | None) -> None:
        host, port = address
        if token is None and not _is_loopback(host):
            words = f"SANDHOG_METRICS_HOST is {host}: others could read it. Set SANDHOG_METRICS_TOKEN, or leave it out."
            raise NodeMisconfigured(words)
        try:
            self._server = ThreadingHTTPServer(address, _handler(registry, token))
        except OSError as exc:
            raise NodeMisconfigured(f"SANDHOG_METRICS_PORT: {host}:{port}: {exc.strerror or exc}.") from exc
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


def _handler(registry: CollectorRegistry, token: str | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = READ_S
        server_version, sys_version = "sandhog", ""

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self._answer(404, b"There is /metrics.\n")
            elif token is not None and not _is_bearer(self.headers.get("Authorization", ""), token):
                self._answer(401, b"Send `Authorization: Bearer` with SANDHOG_METRICS_TOKEN.\n")
            else:
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

        def _answer(self, status: int, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            log.debug("metrics were asked for", extra={"request": format % args})

    return Handler


def _is_bearer(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
