"""What people ask for over the API, and what sessions were denied, stands in the audit log."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.audit import AuditLog
from coordinator.service.denials import denials_to
from coordinator.service.entries import Entry
from coordinator.service.records import SessionRecord
from coordinator.session.call_events import CallFinished
from coordinator.session.events import ChildEvent
from tests.coordinator.api.conftest import Served, code, prompt


def lines(state_dir: Path) -> list[dict[str, Any]]:
    path = state_dir / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_who_asks_for_what_is_written_and_reading_is_not(served: Served) -> None:
    alice = served.principal("alice")
    session = (await alice.post("/v1/sessions", json=prompt())).json()["session_id"]
    await alice.get(f"/v1/sessions/{session}")
    await alice.post(f"/v1/sessions/{session}/cancel")
    assert (await served.client("nobody's").post(f"/v1/sessions/{session}/cancel")).status_code == 401
    asked = [line for line in lines(served.state_dir) if line["action"] == "request"]
    assert [line["detail"] for line in asked] == ["POST /v1/sessions", f"POST /v1/sessions/{session}/cancel"]
    assert {(line["actor"], line["address"], line["via"]) for line in asked} == {("alice", "127.0.0.1", "api")}
    assert asked[1]["session"] == session


async def test_what_cannot_be_written_is_not_done(served: Served) -> None:
    (served.state_dir / "audit.lock").mkdir()
    answer = await served.client().post("/v1/sessions", json=prompt())
    assert (answer.status_code, code(answer)) == (503, "UNAVAILABLE")
    assert not list((served.state_dir / "sessions").glob("*"))


def test_denied_calls_are_noted_those_of_sub_agents_too(tmp_path: Path, until: Callable[..., None]) -> None:
    record = SessionRecord(session_id="s-1", principal="alice", created_at=datetime.now(UTC), labels={}, loop="model")
    sink = denials_to(AuditLog(tmp_path))(Entry(record, tmp_path))

    def call(tool: str, error_code: str | None) -> CallFinished:
        status = "error" if error_code else "success"
        return CallFinished(
            step=2, index=1, call_id="c", tool=tool, summary="x", status=status, error_code=error_code, answer=""
        )

    denied = call("Bash", "PERMISSION_DENIED")
    for event in (call("Read", None), call("Edit", "TIMEOUT"), denied):
        sink(event)
    sink(ChildEvent(step=1, index=0, child="s-1.a", description="", event=denied))
    until(lambda: len(lines(tmp_path)) == 2, "both are there")
    assert [line["detail"] for line in lines(tmp_path)] == ["step 2, call 1: Bash x", "s-1.a: step 2, call 1: Bash x"]
    assert {(line["action"], line["actor"], line["session"]) for line in lines(tmp_path)} == {
        ("call_denied", "alice", "s-1")
    }
