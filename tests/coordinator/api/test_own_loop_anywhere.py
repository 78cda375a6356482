"""A caller's steps at servers that do not have its session: run once, and answered the same everywhere.

No worker is here: calls of a tool that there is not are answered by the server itself, and others wait for a node.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from coordinator.cluster.wishes import Wish
from coordinator.service.carried import CARRIED, SMALL_CHARS, carried, carry
from tests.coordinator.api.conftest import Served, Serves, code
from tests.coordinator.api.test_elsewhere import becomes, dies, made
from worker.contract import keys

MARK = "no-command-of-redis-holds-this"
JSON = {"Content-Type": "application/json"}


def step(name: int | str | None, *calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    posted = [{"id": call_id, "name": tool, "arguments": arguments} for call_id, tool, arguments in calls]
    return {"tool_calls": posted, **({} if name is None else {"step": name})}


def refused(name: int | str | None, call_id: str = "a", **arguments: Any) -> dict[str, Any]:
    """A step that needs no node: the tool does not exist."""
    return step(name, (call_id, "Nope", arguments))


def endless(name: int | str | None) -> dict[str, Any]:
    """A step that waits for a node, and there is none."""
    return step(name, ("slow", "Bash", {"command": "true"}))


async def post(client: httpx2.AsyncClient, path: str, body: dict[str, Any], wait: float = 30) -> httpx2.Response:
    return await client.post(f"{path}/tool_calls", json=body, params={"wait": wait})


@pytest.fixture
async def two(serve: Serves) -> tuple[Served, Served]:
    return await serve(), await serve()


async def own_loop(here: Served, there: Served, **body: Any) -> str:
    """The path of a session that one server has and the other one knows of."""
    session_id = await made(here.client(), loop="none", **body)
    await becomes(there.client(), session_id, lambda shown: shown["status"] == "running")
    return f"/v1/sessions/{session_id}"


async def test_a_step_is_the_same_step_at_every_server(two: tuple[Served, Served]) -> None:
    ours, theirs = two
    here, there = ours.client(), theirs.client()
    path = await own_loop(ours, theirs)
    first = await post(there, path, refused(1))
    assert first.status_code == 200, first.text
    assert [one["tool_call_id"] for one in first.json()["messages"]] == ["a"]
    for client in (here, there):
        assert (await post(client, path, refused(1))).json() == first.json()
        assert (await client.get(f"{path}/tool_calls/1")).json() == first.json()
        other = await post(client, path, refused(1, n=2))
        assert (other.status_code, code(other)) == (409, "CONFLICT")
        assert "was posted with other calls" in other.json()["error"]["message"]
    assert (await here.get(path)).json()["step"] == 1, "it ran once"

    at_once = await asyncio.gather(*(post(client, path, refused(2)) for client in (there, here, there, here)))
    assert {answer.status_code for answer in at_once} == {200}
    assert (await here.get(path)).json()["step"] == 2
    for client in (here, there):
        late = await post(client, path, refused(1))
        assert (late.status_code, "is over" in late.text) == (409, True)
        assert (await client.get(f"{path}/tool_calls/1")).status_code == 404
    nameless = await post(there, path, {"tool_calls": [{"name": "Nope"}]})
    assert (nameless.status_code, code(nameless)) == (422, "INVALID")
    by_ids = await post(there, path, refused(None, "b"))
    assert (await post(here, path, refused(None, "b"))).json() == by_ids.json()

    assert (await there.post(f"{path}/finish", json={"text": "bye"})).status_code == 202
    shown = await theirs.ended(there, path.rpartition("/")[2])
    assert (shown["text"], shown["step"]) == ("bye", 3)
    for client in (here, there):
        assert (await post(client, path, refused(None, "b"))).json() == by_ids.json()
        assert (await post(client, path, refused(9))).status_code == 409


async def test_a_step_that_runs_is_waited_for_and_cancelled_through_another_server(two: tuple[Served, Served]) -> None:
    ours, theirs = two
    here, there = ours.client(), theirs.client()
    path = await own_loop(ours, theirs)
    running = await post(there, path, endless("slow"), wait=0)
    assert (running.status_code, running.json()["status"]) == (202, "running"), running.text
    location = running.headers["location"]
    assert (await there.get(location)).status_code == 202
    busy = await post(there, path, refused("next"))
    assert (busy.status_code, "still under way" in busy.text) == (409, True)
    assert (await there.post(f"{path}/finish")).status_code == 409
    waiting = [asyncio.create_task(client.get(location, params={"wait": 60})) for client in (here, there)]
    # Longer than one owner is asked at a time.
    done, _ = await asyncio.wait(waiting, timeout=6)
    assert not done
    cancelled = await there.post(f"{location}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "done"), cancelled.text
    assert "CANCELLED" in cancelled.json()["messages"][0]["content"]
    assert [(await one).json() for one in waiting] == [cancelled.json()] * 2
    assert (await post(there, path, refused("next"))).status_code == 200


async def test_large_calls_do_not_pass_through_redis_and_stay_what_they_are(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    here, there = ours.client(), theirs.client()
    path = await own_loop(ours, theirs)
    session_dir = theirs.state_dir / "sessions" / path.rpartition("/")[2]
    large = MARK * (SMALL_CHARS // len(MARK) + 1)
    body = json.dumps(refused(1, text=large, no_number=float("nan"), huge=10**400))
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        first = await there.post(f"{path}/tool_calls", content=body, headers=JSON)
        redis_client.echo("enough")
        said: list[str] = []
        while not said or "enough" not in said[-1]:
            said.append(await asyncio.to_thread(lambda: monitor.next_command()["command"]))
    assert first.status_code == 200, first.text
    assert any("sandhog:wishes:" in one for one in said), "it went by a wish"
    assert not any(MARK in one for one in said)
    again = await here.post(f"{path}/tool_calls", content=body, headers=JSON)
    assert (again.status_code, again.json()) == (200, first.json()), "the very same calls"
    assert list((session_dir / CARRIED).iterdir()) == []
    await there.post(f"{path}/finish")
    await ours.ended(here, session_dir.name)
    assert not (session_dir / CARRIED).exists()


async def test_a_step_whose_owner_dies_before_it_hears_of_it_runs_at_the_next_one(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    there = theirs.client()
    path = await own_loop(ours, theirs)
    session_id = path.rpartition("/")[2]
    first = await post(there, path, refused(1))
    ours.sessions.cluster.ownership.on_wishes = lambda session: None
    waiting = asyncio.create_task(post(there, path, refused(2), wait=50))
    async with asyncio.timeout(10):
        while not redis_client.llen(keys.wishes(session_id)):
            await asyncio.sleep(0.01)
    await dies(ours, session_id, redis_client)
    answers = await waiting
    assert answers.status_code == 200, answers.text
    assert answers.json() == {**first.json(), "step": "2"}
    assert (await post(there, path, refused(2))).json() == answers.json()
    assert (await post(there, path, refused(1))).status_code == 409
    assert (await there.get(path)).json()["step"] == 2, "it ran once"
    await there.post(f"{path}/finish")


async def test_who_waits_at_a_server_that_lost_the_session_is_not_told_that_its_step_is_done(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    here, there = ours.client(), theirs.client()
    path = await own_loop(ours, theirs)
    session_id = path.rpartition("/")[2]
    waiting = asyncio.create_task(post(here, path, endless(1), wait=15))
    await becomes(there, session_id, lambda shown: shown["step"] == 1)
    # It stood still for longer than its lease, and goes on.
    ownership = ours.sessions.cluster.ownership
    for task in ownership._tasks:
        task.cancel()
    redis_client.delete(keys.coordinator_lease(ownership.coordinator))
    async with asyncio.timeout(30):
        while theirs.sessions.floor.held(session_id) is None:
            await asyncio.sleep(0.05)
    assert not await ownership.note(session_id)
    answer = await waiting
    # The next owner has no node yet that could tell it what became of the call.
    assert (answer.status_code, answer.json()["status"]) == (202, "running"), answer.text
    another = await post(here, path, refused(2), wait=0)
    assert (another.status_code, code(another)) == (503, "UNAVAILABLE"), another.text
    await there.post(f"{path}/cancel")


async def test_the_end_of_a_session_whose_owner_died_is_heard_by_the_next_one(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    there = theirs.client()
    path = await own_loop(ours, theirs)
    session_id = path.rpartition("/")[2]
    assert (await post(there, path, refused(1))).status_code == 200
    await dies(ours, session_id, redis_client)
    # Nobody has it: it waits for whoever goes on with it.
    assert (await there.post(f"{path}/finish", json={"text": "bye"})).status_code == 202
    shown = await theirs.ended(there, session_id)
    assert (shown["status"], shown["text"]) == ("completed", "bye"), shown


async def test_limits_of_a_loop_that_were_changed_are_those_of_its_next_owner(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    path = await own_loop(ours, theirs)
    session_id = path.rpartition("/")[2]
    assert (await ours.client().patch(f"{path}/limits", json={"calls": 7})).status_code == 200
    await dies(ours, session_id, redis_client)
    there = theirs.client()
    # Nobody has it: it is heard by whoever goes on with it, beside what its last owner heard.
    assert (await there.patch(f"{path}/limits", json={"steps": 9})).status_code == 200
    shown = await becomes(there, session_id, lambda shown: shown["limits"]["steps"] == 9)
    assert shown["limits"]["calls"] == 7
    held = theirs.sessions.floor.held(session_id)
    assert held is not None
    assert (held.limits.calls, held.limits.steps) == (7, 9)
    await there.post(f"{path}/finish")


async def test_a_post_that_nobody_hears_says_that_it_may_be_sent_again(
    two: tuple[Served, Served], redis_client: redis.Redis
) -> None:
    ours, theirs = two
    there = theirs.client()
    path = await own_loop(ours, theirs)
    session_id = path.rpartition("/")[2]
    # It lives, and hears nothing: as one of an earlier release.
    ours.sessions.cluster.ownership.on_wishes = lambda session: None
    unheard = await post(there, path, refused(1), wait=0)
    assert (unheard.status_code, code(unheard)) == (503, "UNAVAILABLE")
    assert "runs once" in unheard.json()["error"]["fix"]
    assert unheard.headers["retry-after"] == "2"
    assert redis_client.llen(keys.wishes(session_id)) == 1
    # Whoever goes on with the session does not begin what was given up.
    await dies(ours, session_id, redis_client)
    async with asyncio.timeout(30):
        while theirs.sessions.floor.held(session_id) is None:
            await asyncio.sleep(0.05)
    again = await post(there, path, refused(2))
    assert again.status_code == 200, again.text
    assert (await there.get(path)).json()["step"] == 1
    assert (await there.get(f"{path}/tool_calls/1")).status_code == 404
    await there.post(f"{path}/finish")


async def test_a_server_that_ends_lets_those_go_who_wait_for_a_step(two: tuple[Served, Served]) -> None:
    ours, theirs = two
    here, there = ours.client(), theirs.client()
    path = await own_loop(ours, theirs)
    assert (await post(there, path, endless(1), wait=0)).status_code == 202
    waiting = [asyncio.create_task(post(client, path, endless(1), wait=60)) for client in (here, there)]
    await asyncio.wait(waiting, timeout=0.5)
    ours.sessions.close()
    theirs.sessions.close()
    async with asyncio.timeout(20):
        assert [(await one).status_code for one in waiting] == [202, 202]


async def test_the_tools_of_a_session_are_the_same_at_every_server(two: tuple[Served, Served]) -> None:
    ours, theirs = two
    here = ours.principal("team", ceiling={"tools": ["Read", "Bash"]})
    there = theirs.client(here.headers["authorization"].removeprefix("Bearer "))
    session_id = await made(here, loop="none", tools=["Bash", "Edit"])
    shown = [(await one.get(f"/v1/sessions/{session_id}/tools")).json()["tools"] for one in (here, there)]
    assert [tool["function"]["name"] for tool in shown[0]] == ["Bash"]
    assert shown[1] == shown[0]


async def test_a_wish_is_heard_by_the_one_that_it_is_for(two: tuple[Served, Served]) -> None:
    ours, theirs = two
    for only in ("", ours.sessions.cluster.ownership.coordinator):
        await theirs.sessions.cluster.wishes.send("s", Wish(kind="step", text=only, only=only), None)
    await theirs.sessions.cluster.wishes.send("t", Wish(kind="step", only="somebody"), None)
    assert len(await ours.sessions.cluster.wishes.take("s")) == 2
    assert await ours.sessions.cluster.wishes.take("t") == []


def test_a_text_is_read_once_whatever_its_size_and_wherever_a_word_points(tmp_path: Path) -> None:
    for text in ("", "=", "x" * SMALL_CHARS):
        assert carried(tmp_path, carry(tmp_path, text)) == text
    assert not (tmp_path / CARRIED).exists()
    word = carry(tmp_path, "é" * (SMALL_CHARS + 1))
    (kept,) = (tmp_path / CARRIED).iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert carried(tmp_path, word) == "é" * (SMALL_CHARS + 1)
    assert carried(tmp_path, word) is None
    (tmp_path / "record.json").write_text("{}")
    assert carried(tmp_path, "../record.json") is None
    assert (tmp_path / "record.json").exists()
