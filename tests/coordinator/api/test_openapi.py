"""The described API is the real one: examples are taken, answers fit their schemas, nothing that is sent breaks it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves, prompt


def schema_of(described: dict[str, Any], path: str, method: str, status: int) -> dict[str, Any]:
    content = described["paths"][path][method]["responses"][str(status)]["content"]
    return {**content["application/json"]["schema"], "components": described["components"]}


def demand_fits(described: dict[str, Any], path: str, method: str, response: httpx2.Response) -> None:
    schema = schema_of(described, path, method, response.status_code)
    Draft202012Validator(schema).validate(response.json())


async def test_answers_are_as_they_are_described_and_examples_are_taken(serve: Serves) -> None:
    served = await serve([Turn("done")])
    client = served.client()
    described = (await client.get("/openapi.json")).json()
    schemas = described["components"]["schemas"]
    for example in schemas["NewSession"]["examples"]:
        response = await client.post("/v1/sessions", json=example)
        assert response.status_code == 201, response.text
        demand_fits(described, "/v1/sessions", "post", response)
        shown = await client.get(f"/v1/sessions/{response.json()['session_id']}")
        demand_fits(described, "/v1/sessions/{session_id}", "get", shown)
        # The description leaves nulls out of examples.
        left_out = set(shown.json()) - set(schemas["SessionView"]["examples"][0])
        assert left_out <= {"position", "queue", "forked_from", "last_error"}
        assert set(schemas["SessionView"]["examples"][0]) <= set(shown.json())
    session_id = (await client.post("/v1/sessions", json=prompt(stay_open=True))).json()["session_id"]
    sent = schemas["Message"]["examples"][0]
    said = await client.post(f"/v1/sessions/{session_id}/message", json=sent)
    demand_fits(described, "/v1/sessions/{session_id}/message", "post", said)
    caller = (await client.post("/v1/sessions", json={"loop": "none"})).json()["session_id"]
    calls = schemas["Calls"]["examples"][0]
    posted = await client.post(f"/v1/sessions/{caller}/tool_calls", json=calls, params={"wait": 0})
    assert posted.status_code == 202, "no worker is there"
    demand_fits(described, "/v1/sessions/{session_id}/tool_calls", "post", posted)
    assert set(posted.json()) == set(schemas["Answers"]["examples"][0])
    answer = await client.post(f"/v1/sessions/{session_id}/approvals", json=schemas["NamedAnswer"]["examples"][0])
    demand_fits(described, "/v1/sessions/{session_id}/approvals", "post", answer)
    for path in ("/v1/sessions", "/v1/nodes", "/v1/principals/me", "/readyz", "/healthz"):
        demand_fits(described, path, "get", await client.get(path))
    for path in ("/tools", "/approvals"):
        response = await client.get(f"/v1/sessions/{session_id}{path}")
        demand_fits(described, f"/v1/sessions/{{session_id}}{path}", "get", response)
    for item in described["paths"].values():
        for operation in item.values():
            assert operation.get("description"), operation
    guarded = {path for path in described["paths"] if path.startswith("/v1")}
    assert all("security" in operation for path in guarded for operation in described["paths"][path].values())


def examples_in(described: dict[str, Any], place: str, schema: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every example of the description with where it stands and the schema that it is one of."""
    if isinstance(schema, list):
        for number, one in enumerate(schema):
            yield from examples_in(described, f"{place}/{number}", one)
    if not isinstance(schema, dict):
        return
    # A parameter, or a kind of body, has its schema below it.
    about = schema.get("schema", schema)
    whole = {
        **{name: value for name, value in about.items() if name != "examples"},
        "components": described["components"],
    }
    given = schema.get("examples", [])
    for example in [*given] if isinstance(given, list) else [one["value"] for one in given.values()]:
        yield place, example, whole
    if "example" in schema:
        yield place, schema["example"], whole
    for name, one in schema.items():
        if name not in ("example", "examples"):
            yield from examples_in(described, f"{place}/{name}", one)


async def test_every_example_fits_its_own_schema(served: Served) -> None:
    described = (await served.client().get("/openapi.json")).json()
    wrong, places = [], set()
    for place, example, schema in examples_in(described, "", described):
        places.add(place)
        found = Draft202012Validator(schema).iter_errors(example)
        wrong += [f"{place}: {fault.json_path} {fault.message}" for fault in found]
    assert wrong == []
    for name in ("NewSession", "NewFork", "SessionView", "Created", "Message", "NamedAnswer", "Calls", "Answers"):
        assert f"/components/schemas/{name}" in places


def described_operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def placed(path: str, session_id: str) -> str:
    """A path that is asked for, of its description."""
    names = {"session_id": session_id, "path": "a.txt", "name": "3.0", "step": "3"}
    return path.format(**names)


class Answering:
    """Sends requests, and notes what was answered to which operation."""

    def __init__(self, described: dict[str, Any], session_id: str) -> None:
        self.described = described
        self.session_id = session_id
        self.seen: set[tuple[str, str, int]] = set()

    async def all(self, client: httpx2.AsyncClient, expected: int, where: Callable[..., bool], **request: Any) -> None:
        """Send a request to each operation of which `where` is true: each answers with that status."""
        for path, method, operation in described_operations(self.described):
            if where(path, method, operation):
                response = await client.request(method.upper(), placed(path, self.session_id), **request)
                assert response.status_code == expected, (method, path, response.text)
                self.seen.add((path, method, response.status_code))

    async def one(self, client: httpx2.AsyncClient, expected: int, method: str, path: str, **request: Any) -> None:
        """Send one request; the operation is named as the description has it."""
        response = await client.request(method.upper(), placed(path, self.session_id), **request)
        assert response.status_code == expected, (method, path, response.text)
        self.seen.add((path, method, response.status_code))

    def undescribed(self) -> set[tuple[str, str, int]]:
        """What was answered and is not described as an error."""
        paths = self.described["paths"]
        shape = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
        return {
            (path, method, status)
            for path, method, status in self.seen
            if paths[path][method]["responses"].get(str(status), {}).get("content") != shape
        }


async def test_each_error_that_a_route_can_give_is_described_with_it(serve: Serves) -> None:
    served = await serve([Turn("late", delay_s=60)], max_body_bytes=10_000, max_archive_bytes=10_000)
    client = served.client()
    described = (await client.get("/openapi.json")).json()
    session_id = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    answering = Answering(described, session_id)

    def guarded(path: str, method: str, operation: dict[str, Any]) -> bool:
        return path.startswith("/v1/")

    def of_a_session(path: str, method: str, operation: dict[str, Any]) -> bool:
        return "{session_id}" in path

    def changing(path: str, method: str, operation: dict[str, Any]) -> bool:
        return method != "get"

    def with_json(path: str, method: str, operation: dict[str, Any]) -> bool:
        return "application/json" in operation.get("requestBody", {}).get("content", {})

    await answering.all(served.client(None), 401, guarded)
    await answering.all(client, 422, lambda *_: True, params={"x": "x" * 9_000})
    await answering.all(served.principal("other"), 404, of_a_session, json={"prompt": "x", "text": "x"})
    await answering.all(client, 413, changing, content=b"x" * 10_001)
    await answering.all(client, 415, with_json, content=b"{}", headers={"Content-Type": "text/plain"})
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    await answering.one(client, 415, "put", "/v1/archives", content=b"--x--", headers=form)

    session = "/v1/sessions/{session_id}"
    await answering.one(client, 409, "get", f"{session}/patch")
    await answering.one(client, 409, "post", f"{session}/fork", json={"prompt": "x"})
    calls = {"step": 1, "tool_calls": [{"id": "a", "name": "Bash", "arguments": {}}]}
    await answering.one(client, 409, "post", f"{session}/tool_calls", json=calls)
    await answering.one(client, 409, "get", f"{session}/tool_calls/{{step}}")
    await answering.one(client, 409, "post", f"{session}/tool_calls/{{step}}/cancel")
    for name in ("calls/{name}", "steps/{step}"):
        await answering.one(client, 404, "post", f"{session}/{name}/cancel")
    for path, body in (("approvals", {"name": "3.0"}), ("approvals/{name}", {})):
        await answering.one(client, 404, "post", f"{session}/{path}", json={**body, "decision": "allow"})
    team = served.principal("team", ceiling={"profiles": ["small"]}, quota={"running": 1, "queued": 0})
    await answering.one(team, 403, "post", "/v1/sessions", json=prompt(profile="large"))
    await answering.one(team, 201, "post", "/v1/sessions", json=prompt(profile="small"))
    answering.seen.discard(("/v1/sessions", "post", 201))
    await answering.one(team, 429, "post", "/v1/sessions", json=prompt(profile="small"))
    await client.post(f"/v1/sessions/{session_id}/cancel")
    await served.ended(client, session_id)
    await answering.one(client, 409, "patch", f"{session}/limits", json={"steps": 3})
    (served.state_dir / "principals.json").write_text("{")
    await answering.all(client, 503, guarded)
    await answering.one(client, 503, "get", "/readyz")
    assert answering.undescribed() == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


async def test_nothing_that_is_sent_breaks_the_server(served: Served) -> None:
    client = served.client()
    described = (await client.get("/openapi.json")).json()
    session_id = (await client.post("/v1/sessions", json=prompt(stay_open=True))).json()["session_id"]
    operations = [
        (method, path)
        for path, item in described["paths"].items()
        for method in item
        if method in ("post", "patch", "get") and "/events" not in path
    ]
    names = [*sorted(described["components"]["schemas"]["NewSession"]["properties"]), "text", "tool_calls", "step"]
    bodies = JSON | st.dictionaries(st.sampled_from(names), JSON, max_size=6)
    taken = {
        (method, path): {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
        for path, method, operation in described_operations(described)
    }
    asked = st.sampled_from(sorted(set().union(*taken.values()))) | st.text(max_size=6)
    seen: list[int] = []

    @settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(operations), bodies, st.text(max_size=12), st.dictionaries(asked, st.text()), st.booleans())
    def send(operation: tuple[str, str], body: Any, part: str, query: dict[str, str], has_strays: bool) -> None:
        method, path = operation
        place = path.replace("{session_id}", session_id)
        for name in ("{path}", "{name}", "{step}"):
            place = place.replace(name, httpx2.QueryParams({"x": part}).__str__()[2:] or "x")
        content = json.dumps(body).encode("utf-8", "replace") if method != "get" else None
        query = {name: value for name, value in query.items() if name.isprintable() and value.isprintable()}
        # With what no route takes nothing else of a request would be looked at.
        query = {name: value for name, value in query.items() if has_strays or name in taken[operation]}
        response = own.request(method, place, content=content, params=query, headers=headers)
        seen.append(response.status_code)
        assert response.status_code < 500 or place == "/readyz", (method, place, body, response.text)
        told = described["paths"][path][method]["responses"]
        # A part may lead to another path, and to none.
        assert str(response.status_code) in told or response.status_code in (404, 405), (method, place, response.text)
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"code", "message", "fix"}

    headers = {"Authorization": f"Bearer {FIRST_TOKEN}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=served.base_url, timeout=60, trust_env=False) as own:
        await asyncio.to_thread(send)
    assert any(status < 400 for status in seen)
    assert any(status == 422 for status in seen)
    assert (await client.get("/healthz")).status_code == 200


async def test_a_session_that_is_found_again_and_one_that_may_not_be_had_are_told_of(served: Served) -> None:
    paths = (await served.client().get("/openapi.json")).json()["paths"]
    for path in ("/v1/sessions", "/v1/sessions/{session_id}/fork"):
        assert {"200", "201", "403"} <= set(paths[path]["post"]["responses"])
