import asyncio
import json
import threading
from typing import Any

import httpx2
import pytest

from coordinator.client import ApiError, Client, _lines
from coordinator.endpoint.scripted import Turn
from coordinator.session.transcript import read_transcript
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves, code, prompt


async def created(client: httpx2.AsyncClient, **body: Any) -> str:
    response = await client.post("/v1/sessions", json=prompt(**body))
    assert response.status_code == 201, response.text
    return str(response.json()["session_id"])


async def test_a_session_is_answered_at_once_and_ends(served: Served) -> None:
    client = served.client()
    response = await client.post("/v1/sessions", json=prompt("say it", labels={"team": "a"}))
    assert response.status_code == 201
    made = response.json()
    assert made["status"] in ("queued", "running")
    assert response.headers["location"] == f"/v1/sessions/{made['session_id']}"
    shown = await served.ended(client, made["session_id"])
    assert shown["status"] == "completed", shown
    assert shown["text"] == "done"
    assert shown["step"] == 1
    assert shown["labels"] == {"team": "a"}
    assert shown["principal"] == "local"
    assert shown["usage"]["completion_tokens"] > 0


async def test_sessions_are_listed_newest_first_filtered_and_in_pages(served: Served) -> None:
    client = served.client()
    ids = [await created(client, labels={"n": str(number), "all": "yes"}) for number in range(5)]
    for session_id in ids:
        await served.ended(client, session_id)
    page = (await client.get("/v1/sessions", params={"limit": 2})).json()
    following = (await client.get("/v1/sessions", params={"limit": 5, "after": page["next"]})).json()
    listed = [one["session_id"] for one in page["sessions"] + following["sessions"]]
    assert sorted(listed, reverse=True) == listed
    assert set(listed) == set(ids)
    assert following["next"] is None

    found = await client.get("/v1/sessions", params=[("label", "n=3"), ("label", "all=yes")])
    assert [one["session_id"] for one in found.json()["sessions"]] == [ids[3]]
    found = await client.get("/v1/sessions", params=[("label", "n=3"), ("label", "n=4")])
    assert found.json()["sessions"] == [], "all of them are asked for, also of one key"
    assert (await client.get("/v1/sessions", params={"status": "failed"})).json()["sessions"] == []
    assert len((await client.get("/v1/sessions", params={"status": "completed"})).json()["sessions"]) == 5
    assert (await client.get("/v1/sessions", params={"since": "2999-01-01T00:00:00Z"})).json()["sessions"] == []
    assert code(await client.get("/v1/sessions", params={"label": "n"})) == "INVALID"
    assert code(await client.get("/v1/sessions", params={"status": "sleepy"})) == "INVALID"


async def test_one_idempotency_key_is_one_session_also_at_once_and_after_a_restart(serve: Serves) -> None:
    served = await serve()
    client = served.client()
    key = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(
        *[client.post("/v1/sessions", json=prompt(env={"A": "secret"}), headers=key) for _ in range(8)]
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    (session_id,) = {answer.json()["session_id"] for answer in answers}
    assert code(await client.post("/v1/sessions", json=prompt("else"), headers=key)) == "CONFLICT"
    in_body = await client.post("/v1/sessions", json=prompt(env={"A": "secret"}, idempotency_key="k-1"))
    assert in_body.json()["session_id"] == session_id
    both = await client.post("/v1/sessions", json=prompt(idempotency_key="k-2"), headers=key)
    assert code(both) == "INVALID"

    other = served.principal("other")
    theirs = await other.post("/v1/sessions", json=prompt(env={"A": "secret"}), headers=key)
    assert theirs.status_code == 201, "keys are each principal's own"
    assert theirs.json()["session_id"] != session_id

    again = await serve()
    answer = await again.client().post("/v1/sessions", json=prompt(env={"A": "secret"}), headers=key)
    assert (answer.status_code, answer.json()["session_id"]) == (200, session_id)


async def test_events_are_streamed_and_taken_up_where_they_were_left(serve: Serves) -> None:
    served = await serve([Turn("some words, piece by piece", chunk_chars=4, chunk_delay_s=0.01)])
    client = served.client()
    session_id = await created(client)
    messages = await streamed(client, session_id)
    kinds = [message["event"] for message in messages]
    assert kinds[0] == "session_started"
    assert kinds[-1] == "session_ended"
    text = "".join(message["data"]["text"] for message in messages if message["event"] == "text_delta")
    assert text == "some words, piece by piece"
    kept = [message for message in messages if "id" in message]
    assert [message["data"]["seq"] for message in kept] == list(range(1, len(kept) + 1))
    transcript = served.state_dir / "sessions" / session_id / f"{session_id}.1.jsonl"
    assert [entry.fields["type"] for entry in read_transcript(transcript).entries] == [one["event"] for one in kept]

    rest = await streamed(client, session_id, {"Last-Event-ID": kept[1]["id"]})
    assert rest == kept[2:]
    over = await client.get(f"/v1/sessions/{session_id}/events", headers={"Last-Event-ID": kept[-1]["id"]})
    assert over.status_code == 204
    bad = await client.get(f"/v1/sessions/{session_id}/events", headers={"Last-Event-ID": "x"})
    assert code(bad) == "INVALID"


async def test_an_event_that_a_session_has_not_got_to_is_refused(serve: Serves) -> None:
    gate = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        gate.wait(60)
        return Turn("done")

    served = await serve(script)
    other = (await serve(script)).client()
    client = served.client()
    session_id = await created(client)
    path = f"/v1/sessions/{session_id}/events"
    kept: list[str] = []
    async with client.stream("GET", path) as response:
        async for line in response.aiter_lines():
            kept += [line.removeprefix("id: ")] if line.startswith("id: ") else []
            if line == "event: step_started":
                break

    async def refused(last: str) -> None:
        named: list[dict[str, Any]] = [{"headers": {"Last-Event-ID": "9.1"}}, {"params": {"after": "1.999999"}}]
        for answer in await asyncio.gather(*[asked.get(path, **one) for asked in (client, other) for one in named]):
            assert (answer.status_code, code(answer)) == (422, "INVALID"), answer.text
            assert f"its last one is {last}." in answer.json()["error"]["message"]

    await refused(kept[-1])
    gate.set()
    rest = await streamed(client, session_id, {"Last-Event-ID": kept[-1]})
    assert rest[-1]["event"] == "session_ended"
    await refused(rest[-1]["id"])
    with Client(served.base_url, FIRST_TOKEN) as own, pytest.raises(ApiError, match=r"has no event 9\.1") as told:
        await asyncio.to_thread(next, own.events(session_id, "9.1"))
    assert told.value.status == 422


async def test_the_transcript_is_fetched_whole(served: Served) -> None:
    client = served.client()
    session_id = await created(client)
    await served.ended(client, session_id)
    lines = (await client.get(f"/v1/sessions/{session_id}/transcript")).text.splitlines()
    assert [json.loads(line)["type"] for line in lines][-1] == "session_ended"
    assert code(await client.get(f"/v1/sessions/{session_id}/patch")) == "NOT_FOUND", "it never had a box"


async def test_a_waiting_and_a_running_session_are_cancelled(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)], max_running=1)
    client = served.client()
    running, waiting = await created(client), await created(client)
    shown = (await client.get(f"/v1/sessions/{waiting}")).json()
    assert (shown["status"], shown["position"]) == ("queued", 1)
    assert code(await client.get(f"/v1/sessions/{waiting}/patch")) == "CONFLICT"
    for session_id in (waiting, running):
        response = await client.post(f"/v1/sessions/{session_id}/cancel")
        assert response.status_code == 202
        assert (await served.ended(client, session_id))["status"] == "cancelled"
    assert (await client.post(f"/v1/sessions/{running}/cancel")).json()["status"] == "cancelled"


async def test_nothing_is_lost_when_redis_is_emptied_and_the_server_restarted(serve: Serves, redis_client: Any) -> None:
    served = await serve([Turn("late", delay_s=60)], max_running=2)
    client = served.client()
    running = [await created(client) for _ in range(2)]
    waiting = [await created(client, labels={"n": str(number)}, env={"A": "b"}) for number in range(18)]
    await served.sessions.__aexit__(None, None, None)
    redis_client.flushall()

    again = await serve([Turn("done")])
    client = again.client()
    for session_id in waiting:
        assert (await again.ended(client, session_id))["status"] == "completed"
    listed = (await client.get("/v1/sessions", params={"limit": 50})).json()["sessions"]
    assert {one["session_id"] for one in listed} == {*running, *waiting}
    record = (again.state_dir / "sessions" / waiting[0] / "record.json").read_text()
    assert '"A":"b"' not in record, "the values of variables are kept only while the session waits"


async def test_a_sessions_files_are_their_owners_alone(served: Served) -> None:
    session_id = await created(served.client())
    record = served.state_dir / "sessions" / session_id / "record.json"
    assert record.stat().st_mode & 0o777 == 0o600


async def streamed(
    client: httpx2.AsyncClient, session_id: str, headers: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """All messages of a session's stream, until it ends."""
    messages: list[dict[str, Any]] = []
    async with client.stream("GET", f"/v1/sessions/{session_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        message: dict[str, Any] = {}
        async for line in response.aiter_lines():
            if not line and message:
                messages.append(message)
                message = {}
            elif line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                message[name] = json.loads(value) if name == "data" else value
    return messages


async def test_a_key_is_known_also_once_what_its_session_was_made_from_is_gone(served: Served) -> None:
    client = served.client()
    archive = (await client.put("/v1/archives", content=b"kept for a while")).json()["archive"]
    body = {"loop": "none", "archive": archive, "idempotency_key": "once"}
    made = await client.post("/v1/sessions", json=body)
    assert made.status_code == 201, made.text
    (kept,) = served.state_dir.glob(f"*/*/{archive}")
    kept.unlink()
    again = await client.post("/v1/sessions", json=body)
    assert (again.status_code, again.json()["session_id"]) == (200, made.json()["session_id"]), again.text
    other = await client.post("/v1/sessions", json={**body, "idempotency_key": "another"})
    assert other.status_code == 422, "a new one cannot be made from it"


@pytest.mark.parametrize(
    "origin",
    [
        {"repo": "https://somebody:a-password@example.org/x"},
        {"repo": "file:///etc"},
        {"repo": "ext::sh -c true"},
        {"repo": "--upload-pack=x"},
        {"repo": "https://example.org/x\ny"},
        {"image_dir": "/../etc"},
    ],
)
async def test_an_origin_that_no_node_takes_is_refused_before_anything_is_kept(
    served: Served, origin: dict[str, str]
) -> None:
    refused = await served.client().post("/v1/sessions", json=prompt(**origin))
    assert (refused.status_code, code(refused)) == (422, "INVALID")
    assert "a-password" not in refused.text
    assert not list(served.state_dir.glob("sessions/*"))


async def test_the_client_reads_text_with_line_ends_of_other_kinds(serve: Serves) -> None:
    text = "one\u2028two\u2029three\x85four\x0cfive"
    is_watched = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        is_watched.wait(30)
        return Turn(text)

    served = await serve(script)
    session_id = await created(served.client())

    def read() -> dict[str, str]:
        found = {"text_delta": "", "session_ended": ""}
        with Client(served.base_url, FIRST_TOKEN) as client:
            for one in client.events(session_id):
                is_watched.set()
                if one.type in found:
                    found[one.type] += one.data["text"]
        return found

    # Pieces of text come as they are made, kept events as they were kept.
    assert await asyncio.to_thread(read) == {"text_delta": text, "session_ended": text}


def test_a_stream_is_cut_at_its_line_ends_alone() -> None:
    assert list(_lines(["a\u2028b\x85", "c\r", "\nd\n", "\n"])) == ["a\u2028b\x85c", "d", ""]
