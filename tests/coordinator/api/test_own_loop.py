"""Sessions whose calls come from outside: a step is run once, and its answers outlive the session.

No worker is here: calls of a tool that there is not are answered by the server itself.
"""

from typing import Any

import httpx2
import pytest

from coordinator.endpoint.reply import RawCall
from coordinator.service.posted import restored
from coordinator.service.refusals import Refused
from coordinator.session.reading import read_session
from tests.coordinator.api.conftest import Served, code


def calls(tool: str = "Nope", call_id: str = "a", **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": call_id, "name": tool, "arguments": arguments}]}


async def own_loop(client: httpx2.AsyncClient, **body: Any) -> str:
    """The path of a new session without a model."""
    response = await client.post("/v1/sessions", json={"loop": "none", **body})
    assert response.status_code == 201, response.text
    return f"/v1/sessions/{response.json()['session_id']}"


async def post(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], *, key: str | None = None, wait: float = 30
) -> httpx2.Response:
    headers = {"Idempotency-Key": key} if key is not None else {}
    return await client.post(f"{path}/tool_calls", json=body, params={"wait": wait}, headers=headers)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([{"step": 5}, {"step": "k3"}, {"step": 5}], id="a number, a name"),
        pytest.param([{"step": "k1"}, {"step": "k2"}, {"step": "k1"}], id="names"),
        pytest.param([{"step": 5}, {"step": "k3"}, {"step": 4}], id="a smaller number"),
    ],
)
async def test_a_step_does_not_run_again_once_others_came_behind_it(
    served: Served, names: list[dict[str, Any]]
) -> None:
    client = served.client()
    path = await own_loop(client)
    for name in names[:-1]:
        assert (await post(client, path, {**calls(), **name})).status_code == 200
    late = await post(client, path, {**calls(), **names[-1]})
    assert (late.status_code, code(late)) == (409, "CONFLICT")
    assert "is over" in late.json()["error"]["message"]
    assert (await client.get(path)).json()["step"] == 2


async def test_an_earlier_idempotency_key_does_not_run_again_also_while_a_step_is_under_way(served: Served) -> None:
    client = served.client()
    path = await own_loop(client)
    assert (await post(client, path, calls(), key="k1")).status_code == 200
    # Nobody runs it here.
    assert (await post(client, path, calls("Bash", command="true"), key="k2", wait=0)).status_code == 202
    late = await post(client, path, calls(), key="k1")
    assert late.status_code == 409
    assert "is over" in late.json()["error"]["message"]
    assert (await client.post(f"{path}/tool_calls/k2/cancel")).status_code == 200


async def test_without_a_step_the_same_calls_with_the_same_ids_are_a_repeat_and_other_calls_are_not(
    served: Served,
) -> None:
    client = served.client()
    path = await own_loop(client)
    first, other = calls(call_id="call_0", n=1), calls(call_id="call_0", n=2)
    answers = await post(client, path, first)
    assert (await post(client, path, first)).json() == answers.json()
    assert (await post(client, path, other)).status_code == 200, "ids may be used again for other calls"
    late = await post(client, path, first)
    assert (late.status_code, code(late)) == (409, "CONFLICT")
    assert "ids of their own" in late.json()["error"]["fix"]
    assert (await post(client, path, {**first, "step": "anew"})).status_code == 200


async def test_the_answers_of_the_last_step_are_given_after_the_end(served: Served) -> None:
    client = served.client()
    path = await own_loop(client, limits={"calls": 1})
    body = {**calls(), "step": "only"}
    assert (await post(client, path, body, wait=0)).status_code == 202
    shown = await served.ended(client, path.rpartition("/")[2])
    assert shown["status"] == "stopped"
    answers = await client.get(f"{path}/tool_calls/only")
    assert answers.status_code == 200, answers.text
    assert [one["tool_call_id"] for one in answers.json()["messages"]] == ["a"]
    again = await post(client, path, body)
    assert (again.status_code, again.json()) == (200, answers.json())
    assert (await post(client, path, {**calls(), "step": "next"})).status_code == 409
    assert (await client.get(f"{path}/tool_calls/next")).status_code == 404


async def test_the_names_of_all_steps_are_known_again_from_the_transcript(served: Served) -> None:
    client = served.client()
    path = await own_loop(client)
    for name in ("k1", "k2"):
        assert (await post(client, path, calls(), key=name)).status_code == 200
    await client.post(f"{path}/finish")
    session_id = path.rpartition("/")[2]
    await served.ended(client, session_id)
    caller = restored(read_session(served.state_dir / "sessions" / session_id).entries)
    assert caller.last is not None
    assert caller.last.name == "k2"
    with pytest.raises(Refused, match="is over"):
        caller.post("k1", [RawCall(0, "a", "Nope", {})])


async def test_a_session_that_has_ended_without_a_model_takes_no_message(served: Served) -> None:
    client = served.client()
    path = await own_loop(client)
    await client.post(f"{path}/finish", json={"text": "bye"})
    assert (await served.ended(client, path.rpartition("/")[2]))["status"] == "completed"
    said = await client.post(f"{path}/message", json={"text": "x"})
    assert (said.status_code, code(said)) == (409, "CONFLICT")
    assert (await client.get(path)).json()["status"] == "completed"


async def test_the_time_of_a_session_ends_a_step_that_is_under_way(served: Served) -> None:
    client = served.client()
    path = await own_loop(client, limits={"time_s": 1})
    # No worker is here: it waits for one until its time is over.
    answers = await post(client, path, {**calls("Bash", command="true"), "step": 1}, wait=30)
    assert answers.status_code == 200, answers.text
    assert "the session's time was over" in answers.json()["messages"][0]["content"]
    shown = await served.ended(client, path.rpartition("/")[2])
    assert (shown["status"], "time" in shown["stop_reason"]) == ("stopped", True), shown


async def test_an_assistant_message_is_taken_as_a_library_writes_it(served: Served) -> None:
    client = served.client()
    path = await own_loop(client)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    answers = await post(client, path, {**message, "function_call": None, **calls()})
    assert answers.status_code == 200, answers.text


async def test_an_id_may_be_as_long_as_gateways_make_it(served: Served) -> None:
    client = served.client()
    path = await own_loop(client)
    call_id = "call_1__thought__" + "c2ln" * 10_000
    answers = await post(client, path, calls(call_id=call_id))
    assert answers.status_code == 200, answers.text[:300]
    assert answers.json()["messages"][0]["tool_call_id"] == call_id
    assert (await post(client, path, calls(call_id=call_id))).json() == answers.json()


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%2Fb", "x%20", "..."])
async def test_the_location_of_a_step_leads_to_it_whatever_its_name(served: Served, name: str) -> None:
    client = served.client()
    path = await own_loop(client)
    running = await post(client, path, {**calls("Bash", command="true"), "step": name}, wait=0)
    assert running.status_code == 202, running.text
    found = await client.get(running.headers["location"])
    assert (found.status_code, found.json()["step"]) == (202, name), found.text


@pytest.mark.parametrize("name", ["a/b", "/", ".", ".."])
async def test_a_name_that_no_path_can_hold_is_refused(served: Served, name: str) -> None:
    client = served.client()
    path = await own_loop(client)
    for refused in (await post(client, path, {**calls(), "step": name}), await post(client, path, calls(), key=name)):
        assert (refused.status_code, code(refused)) == (422, "INVALID")
    assert (await client.get(path)).json()["step"] == 0
