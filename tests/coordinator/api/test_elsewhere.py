"""Two servers of one cluster: what one of them runs, the other one shows and steers as well."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
import redis

from coordinator.cluster.wishes import Wish
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.service.entries import Entry
from coordinator.service.records import KeyedSession, SessionRecord, claim_key, release_key, write_record
from coordinator.service.wanted import NewSession
from coordinator.session.forking import lay_out, request_of
from coordinator.session.model_table import ModelTable
from coordinator.session.request import new_session_id
from coordinator.session.resume import find
from tests.coordinator.api.conftest import Served, Serves, code, prompt
from worker.contract import keys
from worker.contract.orders import NodeLife


def heard(messages: list[dict[str, Any]]) -> Turn:
    """The model says what it has heard."""
    return Turn(" / ".join(one["content"] for one in messages if one["role"] == "user"))


async def becomes(
    client: httpx2.AsyncClient, session_id: str, claim: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The session once the claim is true of it."""
    async with asyncio.timeout(60):
        while True:
            shown: dict[str, Any] = (await client.get(f"/v1/sessions/{session_id}")).json()
            if claim(shown):
                return shown
            await asyncio.sleep(0.02)


async def made(client: httpx2.AsyncClient, **body: Any) -> str:
    response = await client.post("/v1/sessions", json=body)
    assert response.status_code == 201, response.text
    return str(response.json()["session_id"])


async def dies(served: Served, session_id: str, redis_client: redis.Redis) -> None:
    """As after a SIGKILL: it asks nobody any more, and its lease is gone."""
    held = served.sessions.floor.held(session_id)
    assert held is not None
    held.leave()
    assert held.task is not None
    await asyncio.wait({held.task})
    for task in served.sessions.cluster.ownership._tasks:
        task.cancel()
    redis_client.delete(keys.coordinator_lease(served.sessions.cluster.ownership.coordinator))


async def test_a_session_is_steered_and_watched_through_another_server(serve: Serves) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    here, there = ours.client(), theirs.client()
    session_id = await made(here, **prompt("one", stay_open=True))
    path = f"/v1/sessions/{session_id}"
    await becomes(there, session_id, lambda shown: shown["status"] == "idle")

    said = await there.post(f"{path}/message", json={"text": "two"})
    assert said.status_code == 202, said.text
    await becomes(here, session_id, lambda shown: shown["text"] == "one / two" and shown["status"] == "idle")
    await becomes(there, session_id, lambda shown: shown["text"] == "one / two" and shown["status"] == "idle")

    changed = await there.patch(f"{path}/limits", json={"calls": 7})
    assert (changed.status_code, changed.json()["calls"]) == (200, 7), changed.text
    refused = await there.patch(f"{path}/limits", json={"cost_usd": 1.0})
    assert (refused.status_code, code(refused)) == (422, "INVALID"), "its owner says no, and so does the other server"
    forked = await there.post(f"{path}/fork", json={"prompt": "x"})
    assert (forked.status_code, code(forked)) == (409, "CONFLICT")
    assert "has no workspace yet" in forked.json()["error"]["message"], "no worker is here: its owner says so"
    assert (await there.get(f"{path}/approvals")).json() == {"approvals": []}
    assert (await there.post(f"{path}/finish")).status_code == 202
    assert (await theirs.ended(there, session_id))["status"] == "completed"

    for client in (here, there):
        events = (await client.get(f"{path}/events")).text
        assert "event: session_ended" in events
    first = events.split("id: ")[2].split()[0]
    rest = (await there.get(f"{path}/events", headers={"Last-Event-ID": first})).text
    assert f"id: {first}\n" not in rest
    assert "event: session_ended" in rest
    assert (await there.get(f"{path}/transcript")).text == (await here.get(f"{path}/transcript")).text


async def test_a_session_is_cancelled_through_another_server_while_it_runs_and_while_it_waits(serve: Serves) -> None:
    ours, theirs = (await serve(heard, max_running=1), await serve(heard))
    here, there = ours.client(), theirs.client()
    running = await made(here, **prompt("one", stay_open=True))
    waiting = await made(here, **prompt("two"))
    await becomes(here, running, lambda shown: shown["status"] == "idle")
    assert (await here.get(f"/v1/sessions/{waiting}")).json()["queue"] == {
        "line": "server",
        "place_in_line": 1,
        "ahead": 0,
        "is_at_quota": False,
    }
    # One that waits for a message has completed its last turn.
    for session_id, status in ((waiting, "cancelled"), (running, "completed")):
        asked = await there.post(f"/v1/sessions/{session_id}/cancel")
        assert asked.status_code == 202, asked.text
        assert (await theirs.ended(there, session_id))["status"] == status
        assert (await ours.ended(here, session_id))["status"] == status
        assert (await there.post(f"/v1/sessions/{session_id}/cancel")).status_code == 202


async def test_what_is_wanted_of_a_session_whose_owner_died_is_done_by_the_next_one(
    serve: Serves, redis_client: redis.Redis
) -> None:
    ours = await serve(heard)
    here = ours.client()
    session_id = await made(here, **prompt("one", stay_open=True))
    await becomes(here, session_id, lambda shown: shown["status"] == "idle")
    await dies(ours, session_id, redis_client)
    theirs = await serve(heard)
    there = theirs.client()
    said = await there.post(f"/v1/sessions/{session_id}/message", json={"text": "two"})
    assert said.status_code == 202, said.text
    await becomes(there, session_id, lambda shown: shown["text"].endswith("two"))
    assert (await there.post(f"/v1/sessions/{session_id}/finish")).status_code == 202
    assert (await theirs.ended(there, session_id))["status"] == "completed"


async def test_what_is_wanted_of_a_session_that_was_just_adopted_waits_until_it_runs(
    serve: Serves, redis_client: redis.Redis
) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    there = theirs.client()
    session_id = await made(ours.client(), **prompt("one", stay_open=True))
    await becomes(there, session_id, lambda shown: shown["status"] == "idle")
    await dies(ours, session_id, redis_client)
    # As the takeover does, which then reads the transcript before the session is held.
    cluster = theirs.sessions.cluster
    owner, own = (served.sessions.cluster.ownership.coordinator for served in (ours, theirs))
    assert await cluster.store.adopt_session(session_id, owner, own, 2) == 2
    said = await there.post(f"/v1/sessions/{session_id}/message", json={"text": "two"})
    assert said.status_code == 202, said.text
    assert (await there.post(f"/v1/sessions/{session_id}/finish")).status_code == 202
    shown = await theirs.ended(there, session_id)
    assert (shown["status"], shown["text"].endswith("two")) == ("completed", True), shown


async def test_a_place_in_the_clusters_line_is_shown_by_every_server(serve: Serves, redis_client: redis.Redis) -> None:
    life = NodeLife(node="n", incarnation="n-1", places=1, lanes=1)
    redis_client.sadd(keys.NODES, life.node)
    redis_client.set(keys.node(life.node), life.model_dump_json())
    redis_client.set(keys.lease(life.node), life.incarnation)
    redis_client.zadd(keys.places(life.node), {"somebody": 4_000_000_000})
    call = Turn(calls=(ScriptedCall("Bash", {"command": "true"}),))
    ours, theirs = (await serve((call,)), await serve((call,)))
    here, there = ours.client(), theirs.client()
    first = await made(here, **prompt())
    await becomes(here, first, lambda shown: shown["queue"] is not None)
    second = await made(here, **prompt())
    for client in (here, there):
        shown = await becomes(client, second, lambda shown: shown["queue"] is not None)
        assert shown["queue"] == {"line": "cluster", "place_in_line": 2, "ahead": 1, "is_at_quota": False}
        assert shown["position"] is None
        listed = (await client.get("/v1/sessions")).json()["sessions"]
        # Of one second, they are in no order.
        assert {one["session_id"]: one["queue"]["place_in_line"] for one in listed} == {first: 1, second: 2}
    for session_id in (first, second):
        await here.post(f"/v1/sessions/{session_id}/cancel")
        assert (await ours.ended(here, session_id))["queue"] is None


@pytest.fixture
def answering_node(redis_url: str) -> Iterator[str]:
    """A node that has no boxes and answers every call at once."""
    node = subprocess.Popen([sys.executable, "-m", "tests.bench.answering_node", "n", redis_url])
    yield "n"
    node.terminate()
    node.wait(30)


async def test_a_session_that_gave_its_place_back_is_shown_in_the_line_where_it_waits_for_it(
    serve: Serves, redis_client: redis.Redis, answering_node: str
) -> None:
    call = Turn(calls=(ScriptedCall("Bash", {"command": "true"}),))

    def script(said: list[dict[str, Any]]) -> Turn:
        return call if said[-1]["role"] == "user" else Turn("done")

    ours, theirs = (await serve(script), await serve(script))
    here, there = ours.client(), theirs.client()
    session_id = await made(here, **prompt(stay_open=True))
    await becomes(here, session_id, lambda shown: shown["status"] == "idle" and shown["calls"] == 1)
    # As its node does after a while, which others want.
    redis_client.delete(keys.places(answering_node))
    redis_client.zadd(keys.places(answering_node), {f"other-{number}": 4_000_000_000 for number in range(1_000)})
    assert (await here.post(f"/v1/sessions/{session_id}/message", json={"text": "again"})).status_code == 202
    for client in (here, there):
        shown = await becomes(client, session_id, lambda shown: shown["queue"] is not None)
        assert shown["queue"] == {"line": "cluster", "place_in_line": 1, "ahead": 0, "is_at_quota": False}
    redis_client.zrem(keys.places(answering_node), "other-0")
    shown = await becomes(here, session_id, lambda shown: shown["status"] == "idle" and shown["calls"] == 2)
    assert shown["queue"] is None


async def test_limits_that_cannot_be_kept_are_refused_also_of_a_session_that_waits_for_its_turn(
    serve: Serves,
) -> None:
    served = await serve(heard, max_running=1)
    client = served.client()
    running = await made(client, **prompt("one", stay_open=True))
    waiting = await made(client, **prompt("two"))
    refused = await client.patch(f"/v1/sessions/{waiting}/limits", json={"cost_usd": 1.0})
    assert (refused.status_code, code(refused)) == (422, "INVALID"), refused.text
    changed = await client.patch(f"/v1/sessions/{waiting}/limits", json={"calls": 7})
    assert (changed.status_code, changed.json()["calls"]) == (200, 7)
    await client.post(f"/v1/sessions/{running}/finish")
    shown = await served.ended(client, waiting)
    assert (shown["status"], shown["limits"]["calls"]) == ("completed", 7), shown


async def test_a_fork_that_waited_when_its_server_ended_begins_at_the_next_one(serve: Serves) -> None:
    state_dir = serve.state_dir
    first = await serve(heard)
    parent = await made(first.client(), **prompt("one"))
    assert (await first.ended(first.client(), parent))["status"] == "completed"
    fork = "20300131-120000-0000000f"
    fork_dir = state_dir / "sessions" / fork
    (fork_dir / "work").mkdir(parents=True)
    wanted = NewSession(prompt="two")
    record = SessionRecord(session_id=fork, created_at=datetime.now(UTC), wanted=wanted, forked_from=parent)
    found = find(state_dir, parent)
    write_record(fork_dir, record)
    lay_out(found, fork, request_of(found, ModelTable()), found.saved.to_model(None), 1)
    assert (await first.client().get(f"/v1/sessions/{fork}")).json()["status"] == "queued"
    second = await serve(heard)
    shown = await second.ended(second.client(), fork)
    assert (shown["status"], shown["forked_from"], shown["step"]) == ("completed", parent, 2), shown
    assert shown["text"].startswith("one / [This conversation goes on here in a fork")
    assert shown["text"].endswith("two")


async def test_wishes_are_taken_once_in_their_order(served: Served) -> None:
    wishes = served.sessions.cluster.wishes
    for text in ("a", "b"):
        await wishes.send("s", Wish(kind="message", text=text), None)
    assert [one.text for one in await wishes.take("s")] == ["a", "b"]
    assert await wishes.take("s") == []
    assert await wishes.answer(Wish(kind="cancel"), 0.1) is None


async def test_a_key_whose_session_could_not_be_made_is_free_for_another_server(serve: Serves) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    principal = ours.sessions.floor.principal("local")
    made_as: list[str] = []

    async def fails(session_id: str) -> Entry:
        raise redis.ConnectionError("as when Redis goes away while a fork's workspace is copied")

    async def make(session_id: str) -> Entry:
        made_as.append(session_id)
        return Entry(SessionRecord(session_id=session_id, created_at=datetime.now(UTC)), serve.state_dir)

    with pytest.raises(redis.ConnectionError):
        await ours.sessions._maker.once("k", principal, str, fails)
    async with asyncio.timeout(5):
        entry, is_new = await theirs.sessions._maker.once("k", principal, str, make)
    assert (made_as, is_new) == ([entry.session_id], True)


async def test_one_key_at_two_servers_at_once_is_one_session(serve: Serves) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    clients = [ours.client(), theirs.client()]
    for number in range(8):
        body = prompt("x", idempotency_key=f"k-{number}")
        both = await asyncio.gather(*(client.post("/v1/sessions", json=body) for client in clients))
        assert sorted(answer.status_code for answer in both) == [200, 201], [answer.text for answer in both]
        assert len({answer.json()["session_id"] for answer in both}) == 1
        again = await clients[0].post("/v1/sessions", json=body)
        assert (again.status_code, again.json()["session_id"]) == (200, both[0].json()["session_id"])


async def test_a_session_that_another_server_is_making_is_waited_for_while_that_one_lives(
    serve: Serves, redis_client: redis.Redis
) -> None:
    theirs = await serve(heard)
    there, state_dir = theirs.client(), serve.state_dir
    redis_client.set(keys.coordinator_lease("another"), "1")

    def claimed(key: str) -> KeyedSession:
        wanted = NewSession(prompt="x", idempotency_key=key)
        keyed = KeyedSession(session_id=new_session_id(), salt="s", digest=wanted.digest("s"), maker="another")
        assert claim_key(state_dir, "local", key, keyed) == keyed
        return keyed

    async def waits(key: str) -> "asyncio.Task[httpx2.Response]":
        asking = asyncio.create_task(there.post("/v1/sessions", json=prompt("x", idempotency_key=key)))
        done, _ = await asyncio.wait({asking}, timeout=1)
        assert not done, "another server makes it"
        return asking

    keyed = claimed("made")
    asking = await waits("made")
    record = SessionRecord(session_id=keyed.session_id, created_at=datetime.now(UTC), coordinator="another")
    (state_dir / "sessions" / keyed.session_id).mkdir(parents=True)
    write_record(state_dir / "sessions" / keyed.session_id, record)
    answer = await asking
    assert (answer.status_code, answer.json()["session_id"]) == (200, keyed.session_id)

    keyed = claimed("refused")
    asking = await waits("refused")
    release_key(state_dir, "local", "refused")
    answer = await asking
    assert answer.status_code == 201
    assert answer.json()["session_id"] != keyed.session_id

    keyed = claimed("died")
    asking = await waits("died")
    redis_client.delete(keys.coordinator_lease("another"))
    answer = await asking
    assert (answer.status_code, answer.json()["session_id"]) == (201, keyed.session_id)
