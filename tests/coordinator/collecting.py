"""A collector of spans for tests: OTLP over HTTP."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """Takes spans, as a collector does."""

    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    url: str = ""

    def by_name(self) -> dict[str, Any]:
        return {span.name: span for span in self.spans}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that listens."""
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                taken.services |= {
                    one.value.string_value for one in part.resource.attributes if one.key == "service.name"
                }
                taken.spans += [span for scope in part.scope_spans for span in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        taken.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield taken
        server.shutdown()
        thread.join()
