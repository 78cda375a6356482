"""What a session and its sub-agents ask is listed and answered in one place."""

import asyncio

from coordinator.cluster.approval_requests import Requests
from tests.coordinator.api.conftest import Serves, code, prompt
from tests.coordinator.page.conftest import keep_session, started
from worker.contract.approvals import ApprovalRequest

TREE, OTHER = "20300131-120001-00000001", "20300131-120001-000000012"
"""The other one's id begins as that of the first."""
DEEP = f"{TREE}.1-2-0.1-1-3"


async def ask(requests: Requests, session: str, text: str) -> None:
    request = ApprovalRequest(session=session, step=3, index=0, tool="Bash", digest="d", text=text, reason="why")
    await requests.ask(request.model_copy(update={"agent": "look" if "." in session else ""}), 600)
    # They are listed by their deadlines, which are whole milliseconds.
    await asyncio.sleep(0.002)


async def test_the_whole_tree_is_listed_and_each_call_is_answered_by_its_name(serve: Serves) -> None:
    for name in (TREE, OTHER):
        keep_session(serve.state_dir, name, [(0, started(name))])
    served = await serve()
    client, requests = served.client(), served.sessions.cluster.requests
    for session in (TREE, f"{TREE}.1-2-0", DEEP, OTHER):
        await ask(requests, session, f"of {session}")
    path = f"/v1/sessions/{TREE}/approvals"

    listed = (await client.get(path)).json()["approvals"]
    assert [(one["name"], one["agent"], one["about"], one["text"]) for one in listed] == [
        ("3.0", "", "", f"of {TREE}"),
        ("1-2-0.3.0", "1-2-0", "look", f"of {TREE}.1-2-0"),
        ("1-2-0.1-1-3.3.0", "1-2-0.1-1-3", "look", f"of {DEEP}"),
    ]
    by_body = await client.post(path, json={"name": "1-2-0.1-1-3.3.0", "decision": "deny", "note": "no"})
    assert by_body.json() == {"name": "1-2-0.1-1-3.3.0", "decision": "deny", "by": "local over the API"}
    by_path = await client.post(f"{path}/1-2-0.3.0", json={"decision": "allow"})
    assert by_path.status_code == 200, by_path.text
    assert [one["name"] for one in (await client.get(path)).json()["approvals"]] == ["3.0"]
    given = {session: await requests.answer_of(session, "3.0") for session in (TREE, f"{TREE}.1-2-0", DEEP, OTHER)}
    assert {session: answer.decision for session, answer in given.items() if answer is not None} == {
        f"{TREE}.1-2-0": "allow",
        DEEP: "deny",
    }
    assert code(await client.post(f"{path}/1-2-0.3.0", json={"decision": "deny"})) == "CONFLICT"
    assert code(await client.post(f"{path}/1-9-0.3.0", json={"decision": "deny"})) == "NOT_FOUND"
    for name in ("1-2.3.0", "x.3.0", "../3.0", ".3.0", "3"):
        assert code(await client.post(path, json={"name": name, "decision": "allow"})) == "INVALID", name


async def test_what_is_asked_is_described_as_it_is(serve: Serves) -> None:
    served = await serve()
    client = served.client()
    session_id = (await client.post("/v1/sessions", json=prompt(stay_open=True))).json()["session_id"]
    await ask(served.sessions.cluster.requests, f"{session_id}.1-2-0", "make")
    (asked,) = (await client.get(f"/v1/sessions/{session_id}/approvals")).json()["approvals"]
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    (example,) = schemas["ApprovalView"]["examples"]
    assert set(example) == set(asked)
    assert example["name"] == asked["name"]
