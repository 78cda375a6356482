"""Sessions' events as counters: runner → **sessions** → served.

Labels are bounded: names of tools of the process, error codes, statuses. Nothing that a model, a guest or a request
says becomes one, and no session's id.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from coordinator.endpoint.reply import Usage
from coordinator.service.entries import Entry
from coordinator.session.call_events import ApprovalAnswered, CallFinished
from coordinator.session.events import Event, EventSink, innermost
from coordinator.session.session_events import BoxReplaced, SessionEnded
from coordinator.session.step_events import ModelReplied, RequestFailed, TokensSpent
from tools.base import ErrorCode

OTHER = "other"
OVERLOADED = 429
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class SessionMetrics:
    """Counts what happens in the sessions of this process.

    Args:
        registry: Where the counters are.
        has_tool: Whether the process has a tool of that name.
    """

    def __init__(self, registry: CollectorRegistry, has_tool: Callable[[str], bool]) -> None:
        self._has_tool = has_tool
        self._calls = Histogram(
            "sandhog_call_seconds",
            "From a call's sending, or refusal, to its answer; the outcome is `success`, `partial` or an error code.",
            ["tool", "outcome"],
            buckets=SECONDS,
            registry=registry,
        )
        self._requests = Counter(
            "sandhog_model_requests",
            "Tries at the endpoint: `ok`, `overloaded` (429), `failed`.",
            ["outcome"],
            registry=registry,
        )
        self._retries = Counter("sandhog_model_retries", "Tries that followed a failed one.", registry=registry)
        self._tokens = Counter(
            "sandhog_model_tokens",
            "As the endpoint counted them: `input` (those cached included), `cached`, `output`.",
            ["kind"],
            registry=registry,
        )
        self._cost = Counter(
            "sandhog_cost_usd", "Of sessions that have ended, where prices are known.", registry=registry
        )
        self._approvals = Counter("sandhog_approvals", "Answers of people.", ["decision"], registry=registry)
        self._ended = Counter("sandhog_sessions_ended", "Sessions that ended here.", ["status"], registry=registry)
        self._boxes = Counter("sandhog_boxes_replaced", "Boxes that sessions lost and got anew.", registry=registry)
        for outcome in ("ok", "overloaded", "failed"):
            self._requests.labels(outcome)
        for kind in ("input", "cached", "output"):
            self._tokens.labels(kind)
        for status in ("completed", "stopped", "failed", "cancelled"):
            self._ended.labels(status)
        for decision in ("allow", "deny"):
            self._approvals.labels(decision)

    def watch(self, entry: Entry) -> EventSink:
        """Return the sink for a session that begins, or goes on, here."""
        before_usd = entry.facts.cost_usd or 0.0

        def take(event: Event) -> None:
            if isinstance(event, SessionEnded):
                self._ended.labels(event.status).inc()
                self._cost.inc(max(0.0, (event.cost_usd or 0.0) - before_usd))
            else:
                self._take(event)

        return take

    def _take(self, event: Event) -> None:
        _, event = innermost(event)
        match event:
            case CallFinished():
                tool = event.tool if self._has_tool(event.tool) else OTHER
                self._calls.labels(tool, _outcome(event)).observe(event.time_ms / 1000)
            case ModelReplied():
                self._requests.labels("ok").inc()
                self._spend(event.usage)
            case TokensSpent():
                self._spend(event.usage)
            case RequestFailed():
                self._requests.labels("overloaded" if event.status == OVERLOADED else "failed").inc()
                if event.next_try_s is not None:
                    self._retries.inc()
            case ApprovalAnswered():
                self._approvals.labels(event.decision).inc()
            case BoxReplaced():
                self._boxes.inc()
            case _:
                pass

    def _spend(self, usage: Usage | None) -> None:
        if usage is not None:
            self._tokens.labels("input").inc(max(0, usage.prompt_tokens))
            self._tokens.labels("cached").inc(max(0, usage.cached_tokens))
            self._tokens.labels("output").inc(max(0, usage.completion_tokens))


def _outcome(event: CallFinished) -> str:
    if event.error_code is None:
        return event.status
    # An older or newer worker may send another one.
    return event.error_code if event.error_code in set(ErrorCode) else OTHER
