"""What a request may try: it is refused in the one shape, and nothing is learnt, read or done."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves, code, prompt


async def test_without_a_token_there_is_nothing(served: Served) -> None:
    nobody = served.client(None)
    for path in ("/v1/sessions", "/v1/nodes", "/v1/principals/me", "/v1/sessions/x/events", "/v1/nothing", "/v1"):
        response = await nobody.get(path)
        assert (response.status_code, code(response)) == (401, "UNAUTHENTICATED"), path
        assert response.headers["www-authenticate"] == "Bearer"
    big = await nobody.post("/v1/sessions", content=b"[" * 10_000)
    assert code(big) == "UNAUTHENTICATED", "nothing of the body is looked at"
    for value in (FIRST_TOKEN, f"Basic {FIRST_TOKEN}", "Bearer", f"Bearer {FIRST_TOKEN}x", "Bearer \u00e9"):
        response = await nobody.get("/v1/nodes", headers=[(b"Authorization", value.encode())])
        assert code(response) == "UNAUTHENTICATED", value
    twice = [("Authorization", f"Bearer {FIRST_TOKEN}"), ("Authorization", "Bearer other")]
    assert code(await nobody.get("/v1/nodes", headers=twice)) == "UNAUTHENTICATED"
    assert (await nobody.get("/healthz")).status_code == 200
    assert (await nobody.get("/openapi.json")).status_code == 200
    assert (await nobody.get("/docs")).status_code == 404


async def test_a_token_in_the_address_is_refused_even_beside_a_good_one(served: Served) -> None:
    client = served.client()
    for name in ("token", "access_token", "Api_Key", "authorization"):
        assert code(await client.get("/v1/nodes", params={name: FIRST_TOKEN})) == "INVALID"


async def test_another_principal_sees_and_reaches_nothing_and_cannot_tell(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)])
    owner, other = served.client(), served.principal("other")
    session_id = (await owner.post("/v1/sessions", json=prompt())).json()["session_id"]
    unknown = "20300131-120000-00000000"
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("GET", "/events", None),
        ("GET", "/transcript", None),
        ("GET", "/patch", None),
        ("GET", "/files", None),
        ("GET", "/files/a", None),
        ("GET", "/tree", None),
        ("GET", "/approvals", None),
        ("GET", "/tools", None),
        ("GET", "/tool_calls/1", None),
        ("POST", "/cancel", None),
        ("POST", "/calls/1.0/cancel", None),
        ("POST", "/steps/1/cancel", None),
        ("POST", "/finish", {}),
        ("POST", "/message", {"text": "x"}),
        ("POST", "/fork", {"prompt": "x"}),
        ("POST", "/approvals", {"name": "1.0", "decision": "allow"}),
        ("POST", "/approvals/1.0", {"decision": "allow"}),
        ("POST", "/tool_calls", {"step": 1, "tool_calls": [{"id": "a", "name": "Bash", "arguments": "{}"}]}),
        ("PATCH", "/limits", {"steps": 1}),
    ]
    for method, path, body in requests:
        theirs = await other.request(method, f"/v1/sessions/{session_id}{path}", json=body)
        nothing = await other.request(method, f"/v1/sessions/{unknown}{path}", json=body)
        assert theirs.status_code == nothing.status_code == 404, (method, path, theirs.text)
        assert theirs.text.replace(session_id, unknown) == nothing.text
    assert (await other.get("/v1/sessions")).json()["sessions"] == []
    for principal in ("local", "*"):
        assert (await other.get("/v1/sessions", params={"principal": principal})).json()["sessions"] == []
    shown = (await owner.get(f"/v1/sessions/{session_id}")).json()
    assert shown["status"] == "running"

    operator = served.principal("boss", is_operator=True)
    assert (await operator.get("/v1/sessions")).json()["sessions"] == []
    assert len((await operator.get("/v1/sessions", params={"principal": "*"})).json()["sessions"]) == 1
    forked = await operator.post(f"/v1/sessions/{session_id}/fork", json={"prompt": "x"})
    assert (forked.status_code, code(forked)) == (403, "FORBIDDEN"), "what it would do is the owner's to answer for"
    assert (await operator.post(f"/v1/sessions/{session_id}/cancel")).status_code == 202


DEEP = b'{"prompt": "x", "labels": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001


BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    DEEP,
    b'{"prompt": ' + b"9" * 10_000 + b"}",
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a\\u0000b"}',
    b'{"prompt": "x", "limits": {"steps": 1e999}}',
    b'{"prompt": "x", "limits": {"cost_usd": NaN}}',
    b'{"prompt": "x", "limits": {"stepps": 1}}',
    b'{"prompt": "x", "unknown": 1}',
    b'{"prompt": 1}',
    b'{"prompt": ["x"]}',
    b'{"prompt": "  "}',
    b'{"prompt": "x", "loop": "none"}',
    b'{"prompt": "x", "labels": {"a\\nb": "c"}}',
    b'{"prompt": "x", "labels": {"a": "c\\r\\nSet-Cookie: x"}}',
    b'{"prompt": "x", "env": {"A=B": "c"}}',
    b'{"prompt": "x", "env": {"PATH": null}}',
    b'{"prompt": "x", "env": {"OPENAI_API_KEY": null}}',
    b'{"prompt": "x", "tools": ["Fly"]}',
    b'{"prompt": "x", "archive": "../../etc/passwd"}',
    b'{"prompt": "x", "archive": "00000000000000000000000000000000"}',
    b'{"prompt": "x", "bind": true}',
    b'{"prompt": "x", "repo": "https://example.org/a", "archive": "00000000000000000000000000000000"}',
    b'{"prompt": "x", "allow_hosts": ["a b"]}',
    b'{"prompt": "x", "webhook": {"url": "file:///etc/passwd"}}',
    b'{"prompt": "x", "parameters": {"headers": {"Host": "a"}}}',
    b'{"prompt": "x", "parameters": {"headers": {"Authorization": "Bearer mine"}}}',
    b'{"prompt": "x", "parameters": {"stop": ["\\ud800"]}}',
    b'{"prompt": "x", "parameters": {"extra_body": {"a": ["\\ud800"]}}}',
    b'{"prompt": "x", "parameters": {"extra_body": {"\\ud800": 1}}}',
    b'{"prompt": "x", "parameters": {"extra_body": {"a": 1e999}}}',
    b'{"prompt": "x", "idempotency_key": "a b"}',
]


async def test_bodies_that_cannot_be_are_refused_and_nothing_is_made(served: Served) -> None:
    client = served.client()
    for content in BODIES:
        response = await client.post("/v1/sessions", content=content, headers={"Content-Type": "application/json"})
        assert (response.status_code, code(response)) == (422, "INVALID"), (content[:80], response.text)
    assert (await client.get("/v1/sessions")).json()["sessions"] == []
    assert not (served.state_dir / "sessions").exists()


async def test_a_body_of_another_kind_or_size_is_not_read(serve: Serves) -> None:
    served = await serve(max_body_bytes=10_000, max_archive_bytes=20_000)
    client = served.client()
    body = json.dumps(prompt()).encode()
    other = await client.post("/v1/sessions", content=body, headers={"Content-Type": "text/plain"})
    assert (other.status_code, code(other)) == (415, "UNSUPPORTED")
    large = json.dumps(prompt("x" * 10_000)).encode()
    headers = {"Content-Type": "application/json"}
    response = await client.post("/v1/sessions", content=large, headers=headers)
    assert (response.status_code, code(response)) == (413, "TOO_LARGE")

    async def pieces(count: int) -> Any:
        for _ in range(count):
            yield b"x" * 1_000

    untold = await client.post("/v1/sessions", content=pieces(30), headers=headers)
    assert (untold.status_code, code(untold)) == (413, "TOO_LARGE")
    assert (await client.put("/v1/archives", content=pieces(15))).json()["size_bytes"] == 15_000
    too_large = await client.put("/v1/archives", content=pieces(30))
    assert (too_large.status_code, code(too_large)) == (413, "TOO_LARGE")
    assert len([path for path in (served.state_dir / "archives").glob("*/*")]) == 1, "nothing is left of it"
    assert code(await client.get("/v1/sessions?label=" + "x" * 9_000)) == "INVALID"


async def test_an_archive_is_its_uploaders_alone(served: Served) -> None:
    owner, other = served.client(), served.principal("other")
    archive = (await owner.put("/v1/archives", content=b"any")).json()["archive"]
    assert code(await other.post("/v1/sessions", json=prompt(archive=archive))) == "INVALID"
    assert (await owner.post("/v1/sessions", json=prompt(archive=archive))).status_code == 201


async def test_a_workspace_is_below_its_root_or_it_is_none(serve: Serves, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (root / "file").write_text("x")
    served = await serve(roots={"root": root, "barred": tmp_path})
    client = served.client()
    for workspace in ("root", "root/sub", "root/./sub/"):
        assert (await client.post("/v1/sessions", json=prompt(workspace=workspace))).status_code == 201, workspace
    refusals = []
    for workspace in (
        "root/..",
        "root/../root",
        "root/link",
        "root/link/root",
        "root/file",
        "root/none",
        "/etc",
        "etc",
        str(root),
        "..",
        "root/sub/../../..",
        "./root",
        "root\u2044sub",
    ):
        response = await client.post("/v1/sessions", json=prompt(workspace=workspace))
        assert (response.status_code, code(response)) == (422, "INVALID"), workspace
        refusals.append(response.json()["error"]["message"].replace(repr(workspace), "X"))
    assert len(set(refusals)) == 1, "what is there and what is not read the same"
    team = served.principal("team", roots=["root"])
    assert (await team.post("/v1/sessions", json=prompt(workspace="root"))).status_code == 201
    response = await team.post("/v1/sessions", json=prompt(workspace="barred"))
    assert code(response) == "INVALID"
    assert "barred" not in response.json()["error"]["fix"]


BEYOND: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"ceiling": {"policies": ["guarded"]}}, {"policy": "boxed"}),
    ({"ceiling": {"images": ["team/*"]}}, {"image": "other:1"}),
    ({"ceiling": {"profiles": ["small"]}}, {"profile": "large"}),
    ({"setup": False}, {"setup": ["true"]}),
    ({"models": ["small-one"]}, {"model": "large-one"}),
    ({"models": ["small-one"]}, {}),
    ({"allow_hosts": ["example.org"]}, {"allow_hosts": ["example.com"]}),
    ({"repos": ["https://example.org/team/"]}, {"repo": "https://example.org/other/a"}),
    ({}, {"repo": "https://example.org/a", "credential": "deploy"}),
    ({}, {"workspace": "root", "bind": True}),
    ({"webhooks": False}, {"webhook": {"url": "https://example.org/"}}),
]


async def test_a_ceiling_is_not_gone_beyond(serve: Serves, tmp_path: Path) -> None:
    served = await serve(roots={"root": tmp_path})
    for number, (allowance, body) in enumerate(BEYOND):
        response = await served.principal(f"team-{number}", **allowance).post("/v1/sessions", json=prompt(**body))
        assert (response.status_code, code(response)) == (403, "FORBIDDEN"), (body, response.text)


async def test_limits_and_tools_are_cut_to_the_ceiling(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)])
    team = served.principal("team", ceiling={"max_steps": 5, "tools": ["Read", "Grep"]})
    body = prompt(limits={"steps": 50}, tools=["Read", "Bash"])
    session_id = (await team.post("/v1/sessions", json=body)).json()["session_id"]
    tools = (await team.get(f"/v1/sessions/{session_id}/tools")).json()["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["Read"]
    granted = await team.patch(f"/v1/sessions/{session_id}/limits", json={"steps": 99, "calls": 3})
    assert (granted.json()["steps"], granted.json()["calls"]) == (5, 3)


async def test_a_session_with_a_profile_of_the_ceiling_runs(served: Served) -> None:
    team = served.principal("team", ceiling={"profiles": ["small"]})
    made = await team.post("/v1/sessions", json=prompt(profile="small"))
    assert made.status_code == 201, made.text
    shown = await served.ended(team, made.json()["session_id"])
    assert (shown["status"], shown["text"]) == ("completed", "done"), shown


async def test_quotas_are_kept_and_nobody_starves(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)], max_running=3)
    greedy = served.principal("greedy", quota={"running": 1, "queued": 2, "created_per_hour": 5})
    made = [await greedy.post("/v1/sessions", json=prompt()) for _ in range(4)]
    assert [response.status_code for response in made] == [201, 201, 201, 429]
    assert code(made[3]) == "TOO_MANY"
    assert int(made[3].headers["retry-after"]) > 0
    me = (await greedy.get("/v1/principals/me")).json()
    assert (me["running"], me["waiting"]) == (1, 2)
    other = served.principal("other")
    theirs = (await other.post("/v1/sessions", json=prompt())).json()
    assert theirs["status"] != "queued" or theirs["position"] is None
    for session in made[:3]:
        await greedy.post(f"/v1/sessions/{session.json()['session_id']}/cancel")
        await served.ended(greedy, session.json()["session_id"])
    again = [await greedy.post("/v1/sessions", json=prompt()) for _ in range(3)]
    assert [response.status_code for response in again] == [201, 201, 429], "five an hour"
    forked = await greedy.post(f"/v1/sessions/{made[0].json()['session_id']}/fork", json={"prompt": "x"})
    assert (forked.status_code, code(forked)) == (429, "TOO_MANY")


async def test_a_fork_is_not_gone_beyond_a_ceiling_with(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)])
    team = served.principal("team", models=["scripted"], webhooks=False)
    path = f"/v1/sessions/{(await team.post('/v1/sessions', json=prompt(model='scripted'))).json()['session_id']}/fork"
    hook = {"url": "https://hooks.example.com/x"}
    async with asyncio.timeout(60):
        # Until the session that was just created has begun.
        while code(await team.post(path, json={"prompt": "x", "model": "other"})) == "CONFLICT":
            await asyncio.sleep(0.05)
    for body in ({"model": "other"}, {"webhook": hook}):
        refused = await team.post(path, json={"prompt": "x", **body})
        assert (refused.status_code, code(refused)) == (403, "FORBIDDEN"), refused.text
    for wrong in ({}, {"prompt": " "}, {"prompt": "x", "at_step": 0}, {"prompt": "x", "workspace": "root"}):
        assert (await team.post(path, json=wrong)).status_code == 422, wrong
    early = await team.post(path, json={"prompt": "x"})
    assert (early.status_code, code(early)) == (409, "CONFLICT"), "there is no worker, and so no workspace"
    left = [one["session_id"] for one in (await team.get("/v1/sessions")).json()["sessions"]]
    assert len(left) == 1
    assert [one.name for one in (served.state_dir / "sessions").iterdir()] == left


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ({"model": "scripted"}, {"models": ["other"]}),
        ({"allow_hosts": ["example.org"]}, {"allow_hosts": []}),
        ({"workspace": "root"}, {"roots": ["other"]}),
        ({"policy": "boxed"}, {"ceiling": {"policies": ["guarded"]}}),
    ],
    ids=lambda value: next(iter(value)),
)
async def test_a_session_goes_on_by_what_its_principal_may_have_now(
    serve: Serves, tmp_path: Path, body: dict[str, Any], taken: dict[str, Any]
) -> None:
    served = await serve(roots={"root": tmp_path})
    team = served.principal("team")
    path = f"/v1/sessions/{(await team.post('/v1/sessions', json=prompt(**body))).json()['session_id']}"
    await served.ended(team, path.rpartition("/")[2])
    assert (await team.post(f"{path}/message", json={"text": "more"})).status_code == 202
    assert (await served.ended(team, path.rpartition("/")[2]))["status"] == "completed"
    served.principal("team", **taken)
    refused = await team.post(f"{path}/message", json={"text": "still more"})
    assert (refused.status_code, code(refused)) == (403, "FORBIDDEN"), refused.text
    assert (await team.get(path)).json()["status"] == "completed"


async def test_a_token_that_is_revoked_ends_what_it_could_do(served: Served) -> None:
    token = served.tokens.create("team")
    client = served.client(token)
    assert (await client.get("/v1/principals/me")).status_code == 200
    served.tokens.revoke("team")
    assert code(await client.get("/v1/principals/me")) == "UNAUTHENTICATED"


async def test_a_stream_ends_with_the_token_that_it_was_asked_with(served: Served) -> None:
    kept, revoked = (served.tokens.create("team") for _ in range(2))
    client = served.client(kept)
    session_id = (await client.post("/v1/sessions", json=prompt(stay_open=True))).json()["session_id"]

    async def read(token: str, has_all: asyncio.Event) -> None:
        async with served.client(token).stream("GET", f"/v1/sessions/{session_id}/events") as response:
            async for line in response.aiter_lines():
                if line == "event: turn_ended":
                    has_all.set()

    has_all = {token: asyncio.Event() for token in (kept, revoked)}
    readers = {token: asyncio.create_task(read(token, has_all[token])) for token in has_all}
    async with asyncio.timeout(60):
        for event in has_all.values():
            await event.wait()
        assert not any(reader.done() for reader in readers.values())
        served.tokens.revoke(revoked.split("_")[1])
        await readers[revoked]
        assert not readers[kept].done(), "the other one goes on, though it is the same principal's"
        await client.post(f"/v1/sessions/{session_id}/cancel")
        await readers[kept]


async def test_what_is_not_there_and_what_is_not_meant_has_the_one_shape(served: Served) -> None:
    client = served.client()
    assert (await client.get("/v1/nothing")).status_code == 404
    assert code(await client.get("/v1/nothing")) == "NOT_FOUND"
    assert code(await client.delete("/v1/sessions")) == "NOT_ALLOWED"
    for session_id in ("..", "%2e%2e", "a%2fb", "x" * 101, "record.json", "a b", "%00"):
        response = await client.get(f"/v1/sessions/{session_id}")
        assert response.status_code in (404, 422), session_id
        assert code(response) in ("NOT_FOUND", "INVALID")
    injected = await client.post("/v1/sessions", json=prompt(), headers={"Idempotency-Key": "a\tb"})
    assert code(injected) == "INVALID"


async def test_a_redis_that_is_away_is_told_as_that(serve: Serves, second_redis: str, state_dir: Path) -> None:
    served = await serve(redis_url=f"unix://{state_dir}/none")
    client = served.client()
    for path in ("/v1/nodes", "/readyz"):
        response = await client.get(path)
        assert (response.status_code, code(response)) == (503, "UNAVAILABLE"), path
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/v1/sessions")).status_code == 200


async def test_followers_of_a_session_hold_up_neither_it_nor_the_server(serve: Serves) -> None:
    served = await serve([Turn("word " * 2_000, chunk_chars=4)])
    client = served.client()
    session_id = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]

    async def lazy() -> None:
        async with client.stream("GET", f"/v1/sessions/{session_id}/events") as response:
            async for _ in response.aiter_raw():
                await asyncio.Event().wait()

    followers = [asyncio.create_task(lazy()) for _ in range(5)]
    assert (await served.ended(client, session_id))["status"] == "completed"
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


@pytest.mark.parametrize("is_told", [True, False], ids=["its length told", "in chunks"])
async def test_whoever_sends_too_much_comes_to_read_that_it_was(serve: Serves, is_told: bool) -> None:
    served = await serve(max_body_bytes=10_000)
    host, port = served.base_url.removeprefix("http://").split(":")
    size = 8 * 1024 * 1024
    body = b"x" * size if is_told else b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"
    length = f"Content-Length: {size}" if is_told else "Transfer-Encoding: chunked"
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {FIRST_TOKEN}\r\n"

    def send() -> bytes:
        # All of it before anything is read, as most clients do.
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\n{length}\r\n\r\n".encode() + body)
            return connection.recv(100)

    assert (await asyncio.to_thread(send)).startswith(b"HTTP/1.1 413 ")
