"""Requests at the edge of what is taken: each is told what to send instead, and nothing is silently passed over."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.endpoint.scripted import Turn
from coordinator.service.archives import Archives
from coordinator.service.refusals import Code, Refused
from tests.coordinator.api.conftest import Served, Serves, code, prompt
from worker.contract import keys
from worker.contract.orders import NodeLife

JSON_TYPE = "Content-Type: application/json"


async def test_a_body_that_is_not_said_to_be_json_is_told_what_to_say(served: Served) -> None:
    client, body = served.client(), json.dumps(prompt()).encode()
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {} if kind is None else {"Content-Type": kind}
        answer = await client.post("/v1/sessions", content=body, headers=headers)
        assert (answer.status_code, code(answer)) == (415, "UNSUPPORTED"), kind
        error = answer.json()["error"]
        assert (kind or "no Content-Type") in error["message"]
        assert JSON_TYPE in error["fix"]
    for kind in ("application/json; charset=utf-8", "application/vnd.x+json", "APPLICATION/JSON"):
        answer = await client.post("/v1/sessions", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 201, answer.text


async def test_a_body_that_is_no_json_is_told_where_and_what_to_send(served: Served) -> None:
    client = served.client()
    for content, words in (
        (b"", "The body is missing."),
        (b'{"prompt": "x",}', "at character 15"),
        (b"{'prompt': 1}", "no JSON"),
        (b'{"prompt": "\xff"}', "no UTF-8"),
        (b'{"limits": {"steps": ' + b"9" * 5_000 + b"}}", "too long"),
        (b"[" * 100_000, "nests too deeply"),
    ):
        answer = await client.post("/v1/sessions", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, code(answer)) == (422, "INVALID"), content[:40]
        error = answer.json()["error"]
        assert words in error["message"]
        assert JSON_TYPE in error["fix"]


async def test_a_form_is_no_archive(served: Served) -> None:
    answer = await served.client().put("/v1/archives", files={"file": b"any"})
    assert (answer.status_code, code(answer)) == (415, "UNSUPPORTED")
    assert "curl -T" in answer.json()["error"]["fix"]
    assert not list(served.state_dir.glob("archives/*/*"))


async def test_an_archive_is_not_empty(served: Served) -> None:
    answer = await served.client().put("/v1/archives", content=b"")
    assert (answer.status_code, code(answer)) == (422, "INVALID")
    assert "curl -T" in answer.json()["error"]["fix"]
    assert not list(served.state_dir.glob("archives/*/*"))


async def test_a_method_that_is_not_taken_is_told_which_are(served: Served) -> None:
    client = served.client()
    for method, path, allowed in (
        ("DELETE", "/v1/sessions", "GET, POST"),
        ("HEAD", "/v1/sessions", "GET, POST"),
        ("OPTIONS", "/v1/sessions", "GET, POST"),
        ("POST", "/v1/archives", "PUT"),
        ("GET", "/v1/sessions/x/limits", "PATCH"),
        ("PUT", "/healthz", "GET"),
        ("BREW", "/v1/sessions/x/approvals", "GET, POST"),
    ):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), (method, path)
        if method != "HEAD":
            assert code(answer) == "NOT_ALLOWED"
            assert answer.json()["error"]["fix"] == f"It takes {allowed.replace(', ', ' and ')}."


async def test_a_slash_at_the_end_leads_nowhere_else(served: Served) -> None:
    client = served.client()
    for method, path in (
        ("GET", "/v1/sessions/"),
        ("POST", "/v1/sessions/"),
        ("GET", "/v1/nodes/"),
        ("GET", "/healthz/"),
    ):
        answer = await client.request(method, path, json=prompt() if method == "POST" else None)
        assert (answer.status_code, code(answer)) == (404, "NOT_FOUND"), (method, path)
        assert "location" not in answer.headers
        assert answer.json()["error"]["fix"] == "Leave out the slash at its end."
    assert (await client.get("/v1/sessions")).json()["sessions"] == []


MEANINGLESS = [
    ("/v1/sessions", "lable=team=a", "no query parameter 'lable'"),
    ("/v1/sessions", "Status=failed", "no query parameter 'Status'"),
    ("/v1/sessions", "limit=1&limit=500", "'limit' is given more than once"),
    ("/v1/sessions", "after=a&after=b", "'after' is given more than once"),
    ("/v1/nodes", "all=1", "no query parameter 'all'"),
    ("/v1/sessions", "after=", "after"),
    ("/v1/sessions", "limit=0", "limit"),
    ("/v1/sessions", "limit=" + "9" * 5_000, "limit"),
    ("/v1/sessions", "limit=1.5", "limit"),
    ("/v1/sessions", "since=yesterday", "since"),
    ("/v1/sessions", "since=1e400", "since"),
    ("/v1/sessions", "status=", "status"),
    ("/v1/sessions", "label=", "label"),
    ("/v1/sessions/x", "wait=nan", "wait"),
    ("/v1/sessions/x", "wait=inf", "wait"),
    ("/v1/sessions/x", "wait=-1", "wait"),
]


async def test_a_probe_may_add_what_it_likes(served: Served) -> None:
    assert (await served.client().get("/healthz?cache=1&cache=2")).status_code == 200


async def test_a_query_that_means_nothing_is_refused(served: Served) -> None:
    client = served.client()
    made = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    for path, query, words in MEANINGLESS:
        answer = await client.get(f"{path.replace('/x', f'/{made}')}?{query}")
        assert (answer.status_code, code(answer)) == (422, "INVALID"), (query, answer.text)
        assert words in answer.json()["error"]["message"]


async def test_odd_filters_find_what_they_mean(served: Served) -> None:
    client = served.client()
    body = prompt(labels={"k": "a=b \u00e9"})
    made = (await client.post("/v1/sessions", json=body)).json()["session_id"]
    for query, count in (
        ("label=k%3Da%3Db%20%C3%A9", 1),
        ("label=k=a=b%20%FF", 0),
        ("label=%00=", 0),
        ("status=completed&status=queued&status=running", 1),
        ("since=0001-01-01T00:00:00%2B23:59", 1),
        ("since=9999-12-31T23:59:59-23:59", 0),
        ("principal=%FF%00", 0),
        ("after=zzzz", 1),
        (f"after={made}", 0),
        ("after=%00%FF", 0),
    ):
        answer = await client.get(f"/v1/sessions?{query}")
        assert answer.status_code == 200, (query, answer.text)
        assert len(answer.json()["sessions"]) == count, query


async def test_one_key_is_one_session_through_two_servers_at_once(serve: Serves) -> None:
    clients = [(await serve([Turn("late", delay_s=60)])).client() for _ in range(2)]
    for number in range(6):
        key = {"Idempotency-Key": f"k-{number}"}
        asked = [client.post("/v1/sessions", json=prompt(), headers=key) for client in clients * 2]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201], [one.text for one in answers]
        (made,) = {answer.json()["session_id"] for answer in answers}
        again = await clients[1].post("/v1/sessions", json=prompt(), headers=key)
        assert (again.status_code, again.json()["session_id"]) == (200, made)
    assert len(list((serve.state_dir / "sessions").iterdir())) == 6
    assert len(list((serve.state_dir / "idempotency").iterdir())) == 6, "no lock is left"


async def test_two_idempotency_keys_of_one_request_are_refused_and_nothing_is_done(served: Served) -> None:
    client = served.client()
    kept = (await client.post("/v1/sessions", json={"loop": "none"})).json()["session_id"]
    calls = {"tool_calls": [{"id": "a", "name": "Nope", "arguments": {}}]}
    for path, body in (("", prompt()), (f"/{kept}/fork", prompt()), (f"/{kept}/tool_calls", calls)):
        for second in ("k-2", "k-1"):
            keys = [("Idempotency-Key", "k-1"), ("idempotency-key", second)]
            answer = await client.post(f"/v1/sessions{path}", json=body, headers=keys)
            assert (answer.status_code, code(answer)) == (422, "INVALID"), (path, answer.text)
            assert answer.json()["error"]["message"] == "The header Idempotency-Key is given more than once."
    assert [one["session_id"] for one in (await client.get("/v1/sessions")).json()["sessions"]] == [kept]
    assert (await client.get(f"/v1/sessions/{kept}")).json()["step"] == 0
    assert not (served.state_dir / "idempotency").exists()


async def test_an_origin_that_no_node_could_ever_give_is_refused_at_once(served: Served) -> None:
    client = served.client()
    refs = ("a b", "-x", "a..b", "a~1", "a:b", "main.lock", "x/", "@{-1}", "a//b", "a" * 300, "v1\n")
    refused: list[tuple[str, dict[str, Any]]] = [
        *(("ref", {"repo": "https://example.org/a", "ref": ref}) for ref in refs),
        ("image_dir", {"image_dir": "/"}),
        *(("image", {"image": image}) for image in ("a b", "-x", "a\u00e9", "a;b")),
        ("--env", {"env": {"A": "\u00e9" * 65_535}}),
    ]
    for name, body in refused:
        answer = await client.post("/v1/sessions", json=prompt(**body))
        assert (answer.status_code, code(answer)) == (422, "INVALID"), body
        assert answer.json()["error"]["message"].startswith(f"{name}: ")
    assert not list(served.state_dir.glob("sessions/*"))
    taken: list[dict[str, Any]] = [
        {"image": "host.example:5000/Team_a/b.c-d@sha256:" + "0" * 64},
        {"env": {"A": "\u00e9" * 65_534}},
    ]
    for body in taken:
        assert (await client.post("/v1/sessions", json=prompt(**body))).status_code == 201, body


async def test_a_step_has_a_name_that_can_be_asked_for(served: Served) -> None:
    client = served.client()
    made = (await client.post("/v1/sessions", json={"loop": "none"})).json()["session_id"]
    path = f"/v1/sessions/{made}/tool_calls"
    for step in (
        b'"\\ud800"',
        b'"\\u00e9"',
        b'"a b"',
        b'"a\\n"',
        b'""',
        b'"%s"' % (b"x" * 201),
        b'"a/b"',
        b'".."',
        b"-1",
    ):
        body = b'{"step": %s, "tool_calls": [{"name": "Nope"}]}' % step
        answer = await client.post(f"{path}?wait=0", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, code(answer)) == (422, "INVALID"), (step[:20], answer.text)


def node(client: redis.Redis, name: str, **more: Any) -> None:
    """A node that Redis knows."""
    life = NodeLife(node=name, incarnation=f"{name}-1", places=4, lanes=4, **more)
    client.sadd(keys.NODES, name)
    client.set(keys.node(name), life.model_dump_json())


async def test_a_profile_that_no_node_has_is_refused_where_all_of_them_tell(
    served: Served, redis_client: redis.Redis
) -> None:
    client = served.client()

    async def asked(profile: str) -> int:
        answer = await client.post("/v1/sessions", json=prompt(profile=profile))
        if answer.status_code == 422:
            error = answer.json()["error"]
            assert error["message"] == f"profile: no node has '{profile}'."
            assert "small, tests" in error["fix"]
        return answer.status_code

    assert await asked("huge") == 201, "no node is there that could tell"
    node(redis_client, "node-a", profiles=("small",))
    node(redis_client, "node-b", profiles=("small", "tests"))
    assert await asked("huge") == 422
    assert await asked("tests") == 201
    assert (await client.post("/v1/sessions", json=prompt())).status_code == 201, "the server's own is not asked about"
    node(redis_client, "node-c")
    assert await asked("huge") == 201, "a node that does not tell may have it"


async def test_uploads_leave_room_to_the_sessions(state_dir: Path) -> None:
    async def pieces(read: list[int]) -> AsyncIterator[bytes]:
        for number in range(3):
            read.append(number)
            yield b"x" * 1_000

    read: list[int] = []
    with pytest.raises(Refused) as refused:
        await Archives(state_dir, room_bytes=2**60).keep(pieces(read), "team")
    assert (refused.value.code, read) == (Code.UNAVAILABLE, [0]), "it is not read to its end"
    assert [name for _, _, names in os.walk(state_dir) for name in names] == []
    assert (await Archives(state_dir, room_bytes=1).keep(pieces([]), "team"))[1] == 3_000


@pytest.mark.parametrize(("what", "body"), [("message", {"text": "x"}), ("fork", {"prompt": "x"})])
async def test_a_volume_that_fails_is_told_as_that_and_no_path_of_the_server(
    served: Served, what: str, body: dict[str, str]
) -> None:
    client = served.client()
    session_id = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    await served.ended(client, session_id)
    transcript = served.state_dir / "sessions" / session_id / f"{session_id}.1.jsonl"
    transcript.rename(transcript.with_suffix(".aside"))
    transcript.mkdir()
    refused = await client.post(f"/v1/sessions/{session_id}/{what}", json=body)
    assert (refused.status_code, code(refused)) == (503, "UNAVAILABLE"), refused.text
    assert str(served.state_dir) not in refused.text
    transcript.rmdir()
    transcript.with_suffix(".aside").rename(transcript)
    assert (await client.get(f"/v1/sessions/{session_id}")).json()["status"] == "completed"


async def test_a_node_shows_of_its_images_those_that_one_may_use(served: Served, redis_client: redis.Redis) -> None:
    node(redis_client, "node-a", images=("box:1", "other/secret:1", "team/tools:1"))
    team = served.principal("team", ceiling={"images": ["team/*", "box:1"]})
    shown = [(await client.get("/v1/nodes")).json()["nodes"][0]["images"] for client in (team, served.client())]
    assert shown == [["box:1", "team/tools:1"], ["box:1", "other/secret:1", "team/tools:1"]]
