"""Names of spans that both sides of the contract agree on without asking: call's key → **traces** → order → node.

A trace is a session's, and a call's span is named by its key: so another coordinator that takes the session over, or a
call that is sent again, stays in its place in the trace.
"""

import hashlib
from collections.abc import Mapping

from worker.contract import keys
from worker.contract.orders import CallKey

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Whether what models and tools say may stand in spans; the conventions' own variable."""


def is_traced(environment: Mapping[str, str]) -> bool:
    """Return whether the standard variables name a place for spans."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    has_exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp") != "none"
    return has_exporter and not is_off and any(environment.get(name) for name in ENDPOINTS)


def shows_content(environment: Mapping[str, str]) -> bool:
    """Return whether spans may hold what models and tools say."""
    return environment.get(CONTENT, "").lower() == "true"


def trace_id(session: str) -> int:
    """Return the trace of a session; that of a sub-agent is the trace of the session above it."""
    return _number(session.partition(keys.CHILD_MARK)[0], 16)


def call_span_id(session: str, step: int, index: int) -> int:
    """Return the span of a call, whichever attempt."""
    return _number(f"{session}:{step}:{index}", 8)


def traceparent(key: CallKey) -> str:
    """Return the header that names a call's span.

    Source: W3C Trace Context, level 1.
    """
    span_id = call_span_id(key.session, key.step, key.index)
    return f"00-{trace_id(key.session):032x}-{span_id:016x}-01"


def _number(text: str, size_bytes: int) -> int:
    # Zero is no valid id.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size_bytes], "big") or 1
