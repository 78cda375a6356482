"""Where spans go: the standard OTEL_* variables → **spans** → OTLP over HTTP. Imported only where they are wanted."""

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Tracer

SCOPE = "sandhog"


class ChosenIds(RandomIdGenerator):
    """Gives the next span the id that was chosen for it, and any other a random one. For one thread."""

    def __init__(self) -> None:
        self.span_id: int | None = None
        self.trace_id: int | None = None

    def generate_span_id(self) -> int:
        """Return the next span's id."""
        chosen, self.span_id = self.span_id, None
        return super().generate_span_id() if chosen is None else chosen

    def generate_trace_id(self) -> int:
        """Return the id of the trace that the next span without a parent begins."""
        chosen, self.trace_id = self.trace_id, None
        return super().generate_trace_id() if chosen is None else chosen


class Spans:
    """A process' tracer, with an exporter of its own and no global one.

    Args:
        service: Its name, where OTEL_SERVICE_NAME does not say it.
    """

    def __init__(self, service: str) -> None:
        self.ids = ChosenIds()
        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or service})
        self._provider = TracerProvider(resource=resource, id_generator=self.ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer: Tracer = self._provider.get_tracer(SCOPE)

    def close(self) -> None:
        """Send what is left; blocks for as long as the exporter's time allows."""
        self._provider.shutdown()
