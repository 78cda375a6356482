"""A session's spans and its worker's, as a collector gets them over OTLP/HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.reply import Usage
from coordinator.service.entries import Entry
from coordinator.service.records import SessionRecord
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.events import ChildEvent, Event
from coordinator.session.session_events import ChildEnded, ChildStarted, SessionEnded, SessionStarted
from coordinator.session.step_events import ModelReplied, RequestFailed, StepStarted
from coordinator.tracing import SessionSpans
from tests.coordinator.collecting import Collector, collecting
from worker.calls import CallEnd
from worker.contract.orders import CallKey
from worker.contract.traces import is_traced, traceparent
from worker.tracing import CallSpans

SESSION = "20300131-120000-1a2b3c4d"
SAID = "a-secret-that-somebody-said"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield collector


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind)
    return found


def play(tmp_path: Path, *, shows_content: bool) -> None:
    """A session with a failed try, a call, and a sub-agent with a call, and the same calls on their node."""
    record = SessionRecord(session_id=SESSION, principal="p", created_at=datetime.now(UTC), labels={}, loop="model")
    spans = SessionSpans(shows_content=shows_content)
    take = spans.watch(Entry(record, tmp_path))
    child = f"{SESSION}.a"

    def started(tool: str, index: int = 0) -> CallStarted:
        return CallStarted(step=1, index=index, call_id=f"c{index}", tool=tool, summary=SAID)

    def finished(tool: str, index: int = 0, error_code: str | None = None) -> CallFinished:
        status = "error" if error_code else "success"
        return CallFinished(
            step=1, index=index, call_id=f"c{index}", tool=tool, status=status, error_code=error_code, answer=SAID
        )

    def of_child(event: Event) -> ChildEvent:
        return ChildEvent(step=1, index=1, child=child, description=SAID, event=event)

    events: list[Event] = [
        SessionStarted(
            session_id=SESSION,
            prompt=SAID,
            model="m",
            policy="boxed",
            workspace_mode="copy",
            workspace_reason="",
            workspace="/w",
            image="i",
            max_steps=5,
        ),
        StepStarted(step=1),
        RequestFailed(step=1, text=SAID, status=503, next_try_s=0.1),
        ModelReplied(
            step=1,
            text=SAID,
            finish_reason="tool_calls",
            usage=Usage(prompt_tokens=7, completion_tokens=2, total_tokens=9),
        ),
        started("Bash"),
        started("Task", 1),
        finished("Bash", error_code="TIMEOUT"),
        ChildStarted(step=1, index=1, child=child, description=SAID, profile="p", transcript="t"),
        of_child(StepStarted(step=1)),
        of_child(started("Read")),
        of_child(finished("Read")),
        ChildEnded(step=1, index=1, child=child, status="completed", stop_reason="", steps=1, calls=1, transcript="t"),
        finished("Task", 1),
        SessionEnded(status="completed", stop_reason="", text=SAID, steps=1, calls=2),
    ]
    for event in events:
        take(event)
    node = CallSpans("node-1")
    for session, tool, outcome in ((SESSION, "Bash", "TIMEOUT"), (child, "Read", "success")):
        key = CallKey(session=session, generation=1, step=1, index=0, attempt=2)
        node.ended(CallEnd(str(key), tool, outcome, 0.1, 0.5, 0.4, 0, traceparent(key)))
    node.ended(CallEnd("k", "Bash", "success", 0.1, 0.5, 0.4, 0, ""))
    node.close()
    spans.close()


def test_spans_of_coordinator_and_node_are_one_tree_without_what_was_said(collector: Collector, tmp_path: Path) -> None:
    play(tmp_path, shows_content=False)
    ids = {span.span_id: span for span in collector.spans}
    assert len(ids) == len(collector.spans)
    assert len({span.trace_id for span in collector.spans}) == 1
    assert collector.services == {"sandhog-coordinator", "sandhog-worker"}

    def path(span: Any) -> str:
        above = ids.get(span.parent_span_id)
        return f"{path(above)} > {span.name}" if above is not None else str(span.name)

    top = "invoke_agent sandhog > step 1"
    below = f"{top} > execute_tool Task > {top}"
    assert sorted(path(span) for span in collector.spans) == sorted(
        [
            "invoke_agent sandhog",
            top,
            f"{top} > chat m",
            f"{top} > chat m",
            f"{top} > execute_tool Bash",
            f"{top} > execute_tool Bash > node Bash",
            f"{top} > execute_tool Bash > node Bash > run Bash",
            f"{top} > execute_tool Task",
            f"{top} > execute_tool Task > invoke_agent sandhog",
            below,
            f"{below} > chat m",
            f"{below} > execute_tool Read",
            f"{below} > execute_tool Read > node Read",
            f"{below} > execute_tool Read > node Read > run Read",
        ]
    )
    assert SAID not in str(collector.spans)
    bash = attributes(collector.by_name()["execute_tool Bash"])
    assert bash["gen_ai.operation.name"] == "execute_tool"
    assert bash["gen_ai.tool.name"] == "Bash"
    assert bash["error.type"] == "TIMEOUT"
    chats = [attributes(span) for span in collector.spans if span.name == "chat m"]
    assert [chat["error.type"] for chat in chats if "error.type" in chat] == ["503"]
    assert [chat["gen_ai.usage.input_tokens"] for chat in chats if "gen_ai.usage.input_tokens" in chat] == [7]


def test_what_was_said_is_shown_where_the_setting_says_so(collector: Collector, tmp_path: Path) -> None:
    play(tmp_path, shows_content=True)
    assert attributes(collector.by_name()["execute_tool Read"])["gen_ai.tool.call.result"] == SAID


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_nothing_is_traced_unless_the_standard_variables_say_where(environment: dict[str, str], expected: bool) -> None:
    assert is_traced(environment) is expected
