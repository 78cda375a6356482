"""Calls of a node as spans below those of their coordinator: calls → **tracing** → OTLP. Imported only where wanted."""

import time

from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from worker.calls import CallEnd
from worker.contract.spans import Spans

_NS = 1_000_000_000


class CallSpans:
    """Writes two spans for each call: its time on the node, and within it the run in box or process.

    Args:
        node: The node's name.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._spans = Spans("sandhog-worker")
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, call: CallEnd) -> None:
        """Write the spans of a call that has its outcome."""
        if not call.traceparent:
            return
        end_ns = time.time_ns()
        start_ns = end_ns - int(call.run_s * _NS)
        above = self._propagator.extract({"traceparent": call.traceparent})
        tracer = self._spans.tracer
        span = tracer.start_span(
            f"node {call.tool}",
            above,
            kind=SpanKind.CONSUMER,
            start_time=start_ns,
            attributes={
                "gen_ai.tool.name": call.tool,
                "sandhog.node": self._node,
                "sandhog.call.key": call.key,
                "sandhog.call.queue_seconds": call.queue_s,
                "sandhog.call.outcome": call.outcome,
            },
        )
        if call.outcome not in ("success", "partial"):
            span.set_attribute("error.type", call.outcome)
            span.set_status(Status(StatusCode.ERROR))
        if call.guest_s > 0:
            run = tracer.start_span(
                f"run {call.tool}",
                set_span_in_context(span),
                start_time=max(start_ns, end_ns - int(call.guest_s * _NS)),
                attributes={"gen_ai.tool.name": call.tool},
            )
            run.end(end_ns)
        span.end(end_ns)

    def close(self) -> None:
        """Send what is left."""
        self._spans.close()
