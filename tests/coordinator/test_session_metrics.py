from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from coordinator.endpoint.reply import Usage
from coordinator.metrics.sessions import SessionMetrics
from coordinator.service.entries import Entry
from coordinator.service.records import SessionRecord
from coordinator.session.call_events import ApprovalAnswered, CallFinished
from coordinator.session.events import ChildEvent, Event
from coordinator.session.session_events import BoxReplaced, SessionEnded
from coordinator.session.step_events import ModelReplied, RequestFailed, TokensSpent


def call(tool: str, error_code: str | None = None) -> CallFinished:
    status = "error" if error_code else "success"
    return CallFinished(
        step=1, index=0, call_id="c", tool=tool, status=status, error_code=error_code, time_ms=20.0, answer="secret"
    )


def test_every_event_that_counts_is_counted_once_and_labels_are_bounded(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = SessionMetrics(registry, lambda name: name in ("Bash", "Read"))
    record = SessionRecord(
        session_id="20300131-120000-1a2b3c4d", principal="p", created_at=datetime.now(UTC), labels={}, loop="model"
    )
    entry = Entry(record, tmp_path)
    entry.facts.cost_usd = 1.0
    sink = metrics.watch(entry)
    usage = Usage(prompt_tokens=10, completion_tokens=3, total_tokens=13, cached_tokens=4)
    reply = ModelReplied(step=1, text="secret", finish_reason="stop", usage=usage)
    child = ChildEvent(step=1, index=0, child="c", description="secret", event=call("Bash", "TIMEOUT"))
    events: list[Event] = [
        call("Bash"),
        call("Read", "NOT_FOUND"),
        call("rm -rf"),
        call("Read", "an invented code"),
        child,
        reply,
        TokensSpent(step=1, usage=usage, on="retry"),
        RequestFailed(step=1, text="secret", status=429, next_try_s=1.0),
        RequestFailed(step=1, text="secret"),
        ApprovalAnswered(step=1, index=0, tool="Bash", decision="deny"),
        BoxReplaced(reason="secret"),
        SessionEnded(status="completed", stop_reason="", text="secret", steps=1, calls=5, cost_usd=1.5),
    ]
    for event in events:
        sink(event)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("sandhog_call_seconds_count", tool="Bash", outcome="success") == 1
    assert value("sandhog_call_seconds_count", tool="Bash", outcome="TIMEOUT") == 1
    assert value("sandhog_call_seconds_count", tool="Read", outcome="NOT_FOUND") == 1
    assert value("sandhog_call_seconds_count", tool="Read", outcome="other") == 1
    assert value("sandhog_call_seconds_count", tool="other", outcome="success") == 1
    assert value("sandhog_model_tokens_total", kind="input") == 20
    assert value("sandhog_model_tokens_total", kind="cached") == 8
    assert value("sandhog_model_tokens_total", kind="output") == 6
    assert value("sandhog_model_requests_total", outcome="ok") == 1
    assert value("sandhog_model_requests_total", outcome="overloaded") == 1
    assert value("sandhog_model_requests_total", outcome="failed") == 1
    assert value("sandhog_model_retries_total") == 1
    assert value("sandhog_approvals_total", decision="deny") == 1
    assert value("sandhog_boxes_replaced_total") == 1
    assert value("sandhog_sessions_ended_total", status="completed") == 1
    assert value("sandhog_cost_usd_total") == 0.5, "what an earlier end has told is not told again"
