"""The described API is the real one: examples are taken, answers fit their schemas, nothing that is sent breaks it."""

import asyncio
import json
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
    seen: list[int] = []

    @settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(operations), bodies, st.text(max_size=12), st.dictionaries(st.text(max_size=6), st.text()))
    def send(operation: tuple[str, str], body: Any, part: str, query: dict[str, str]) -> None:
        method, path = operation
        place = path.replace("{session_id}", session_id)
        for name in ("{path}", "{name}", "{step}"):
            place = place.replace(name, httpx2.QueryParams({"x": part}).__str__()[2:] or "x")
        content = json.dumps(body).encode("utf-8", "replace") if method != "get" else None
        query = {name: value for name, value in query.items() if name.isprintable() and value.isprintable()}
        response = own.request(method, place, content=content, params=query, headers=headers)
        seen.append(response.status_code)
        assert response.status_code < 500 or place == "/readyz", (method, place, body, response.text)
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
