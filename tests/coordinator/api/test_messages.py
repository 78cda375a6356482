"""Messages that were accepted are heard, each once, whatever becomes of the server that accepted them."""

import asyncio
import threading
from typing import Any

import httpx2
import pytest
import redis

from coordinator.endpoint.scripted import Turn
from coordinator.service import unheard
from coordinator.service.messages import MESSAGES
from coordinator.session.loop import Ending
from coordinator.session.reading import segments
from tests.coordinator.api.conftest import Served, Serves, prompt
from tests.coordinator.api.test_elsewhere import becomes, heard, made
from worker.contract import keys


class Gate:
    """A model that says what it has heard, and holds its first answer back until it may go on."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    def __call__(self, messages: list[dict[str, Any]]) -> Turn:
        self.is_open.wait(60)
        return heard(messages)


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def say(client: httpx2.AsyncClient, session_id: str, *texts: str) -> None:
    for text in texts:
        said = await client.post(f"/v1/sessions/{session_id}/message", json={"text": text})
        assert said.status_code == 202, said.text


async def dies(served: Served, session_id: str, redis_client: redis.Redis) -> None:
    """As after a SIGKILL: the server asks nobody any more, and its lease is gone."""
    served.sessions.close()
    held = served.sessions.floor.held(session_id)
    assert held is not None
    held.leave()
    assert held.task is not None
    await asyncio.wait({held.task})
    is_gone(served, redis_client)


def is_gone(served: Served, redis_client: redis.Redis) -> None:
    """Its lease is gone, and it does not come back."""
    for task in served.sessions.cluster.ownership._tasks:
        task.cancel()
    redis_client.delete(keys.coordinator_lease(served.sessions.cluster.ownership.coordinator))


async def test_a_finish_waits_for_the_messages_before_it(serve: Serves, gate: Gate) -> None:
    served = await serve(gate)
    client = served.client()
    session_id = await made(client, **prompt("one", stay_open=True))
    await becomes(client, session_id, lambda shown: shown["status"] == "running")
    await say(client, session_id, "two", "three")
    assert (await client.post(f"/v1/sessions/{session_id}/finish")).status_code == 202
    late = await client.post(f"/v1/sessions/{session_id}/message", json={"text": "late"})
    assert late.status_code == 409
    gate.is_open.set()
    shown = await served.ended(client, session_id)
    assert (shown["status"], shown["text"]) == ("completed", "one / two / three")
    assert not (served.state_dir / "sessions" / session_id / MESSAGES).exists(), "nothing more is to be heard"


@pytest.mark.parametrize("through_another", [False, True], ids=["said to it", "said to another server"])
async def test_messages_that_wait_are_heard_once_by_the_next_owner(
    serve: Serves, gate: Gate, redis_client: redis.Redis, through_another: bool
) -> None:
    ours = await serve(gate)
    here = ours.client()
    session_id = await made(here, **prompt("one", stay_open=True))
    await becomes(here, session_id, lambda shown: shown["status"] == "running")
    said_to = (await serve(heard)).client() if through_another else here
    await say(said_to, session_id, "two", "three")
    await dies(ours, session_id, redis_client)
    gate.is_open.set()
    theirs = await serve(heard)
    there = theirs.client()
    await becomes(there, session_id, lambda shown: shown["text"].endswith("three") and shown["status"] == "idle")
    await say(there, session_id, "four")
    await becomes(there, session_id, lambda shown: shown["text"].endswith("four") and shown["status"] == "idle")
    await there.post(f"/v1/sessions/{session_id}/finish")
    words = str((await theirs.ended(there, session_id))["text"]).split(" / ")
    assert [word for word in words if not word.startswith("[")] == ["one", "two", "three", "four"]
    assert set(segments(theirs.state_dir / "sessions" / session_id)) == {1, 2}, "it was taken over once"


async def test_what_was_heard_is_not_heard_again_by_the_next_owner(serve: Serves, redis_client: redis.Redis) -> None:
    ours = await serve(heard)
    here = ours.client()
    session_id = await made(here, **prompt("one", stay_open=True))
    await say(here, session_id, "two")
    await becomes(here, session_id, lambda shown: shown["text"] == "one / two" and shown["status"] == "idle")
    assert (ours.state_dir / "sessions" / session_id / MESSAGES).exists()
    await dies(ours, session_id, redis_client)
    theirs = await serve(heard)
    there = theirs.client()
    await say(there, session_id, "three")
    await becomes(there, session_id, lambda shown: shown["text"].endswith("three") and shown["status"] == "idle")
    assert (await there.get(f"/v1/sessions/{session_id}")).json()["text"].count("two") == 1
    await there.post(f"/v1/sessions/{session_id}/cancel")


async def test_a_message_to_a_session_that_waits_for_its_turn_is_heard_after_a_restart(
    serve: Serves, gate: Gate, redis_client: redis.Redis
) -> None:
    ours = await serve(gate, max_running=1)
    here = ours.client()
    first = await made(here, **prompt("one"))
    waiting = await made(here, **prompt("two"))
    await say(here, waiting, "three")
    await dies(ours, first, redis_client)
    gate.is_open.set()
    theirs = await serve(heard)
    shown = await theirs.ended(theirs.client(), waiting)
    assert (shown["status"], shown["text"]) == ("completed", "two / three")


def words_of(shown: dict[str, Any]) -> list[str]:
    """What the model has heard of persons; what we say to it stands in brackets."""
    return [word for word in str(shown["text"]).replace("]\n\n", "] / ").split(" / ") if not word.startswith("[")]


async def ended_and_spoken_to(served: Served, gate: Gate, maker: Served) -> tuple[str, str]:
    """A session that has ended, with a message that waits behind another session for the server's one turn."""
    client = served.client()
    gate.is_open.set()
    spoken_to = await made(maker.client(), **prompt("one"))
    assert (await served.ended(client, spoken_to))["text"] == "one"
    gate.is_open.clear()
    blocking = await made(client, **prompt("in the way"))
    await becomes(client, blocking, lambda shown: shown["status"] == "running")
    await say(client, spoken_to, "two")
    return spoken_to, blocking


async def test_a_message_to_a_session_that_had_ended_is_heard_at_the_next_start(
    serve: Serves, gate: Gate, redis_client: redis.Redis
) -> None:
    ours = await serve(gate, max_running=1)
    spoken_to, blocking = await ended_and_spoken_to(ours, gate, ours)
    await dies(ours, blocking, redis_client)
    gate.is_open.set()
    theirs = await serve(heard)
    there = theirs.client()
    shown = await becomes(there, spoken_to, lambda shown: shown["text"] != "one" and shown["status"] == "completed")
    assert words_of(shown) == ["one", "two"]
    directory = theirs.state_dir / "sessions" / spoken_to
    assert set(segments(directory)) == {1, 2}
    async with asyncio.timeout(60):
        while (directory / MESSAGES).exists():
            await asyncio.sleep(0.02)


async def test_a_message_in_the_line_of_a_server_that_lives_is_left_to_it(
    serve: Serves, gate: Gate, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unheard, "EVERY_S", 0.02)
    first, ours = await serve(gate), await serve(gate, max_running=1)
    here = ours.client()
    spoken_to, _ = await ended_and_spoken_to(ours, gate, first)
    is_gone(first, redis_client)
    theirs = await serve(heard)
    # It looks many times.
    await asyncio.sleep(1.0)
    assert set(segments(theirs.state_dir / "sessions" / spoken_to)) == {1}
    gate.is_open.set()
    shown = await becomes(here, spoken_to, lambda shown: shown["text"] != "one" and shown["status"] == "completed")
    assert words_of(shown) == ["one", "two"]
    assert set(segments(ours.state_dir / "sessions" / spoken_to)) == {1, 2}


async def test_what_a_fault_kept_a_session_from_hearing_is_heard_at_the_next_start(
    serve: Serves, gate: Gate, redis_client: redis.Redis
) -> None:
    ours = await serve(gate)
    here = ours.client()
    broken, cancelled = [await made(here, **prompt("one", stay_open=True)) for _ in range(2)]
    for session_id in (broken, cancelled):
        await becomes(here, session_id, lambda shown: shown["status"] == "running")
        await say(here, session_id, "two")
    held = ours.sessions.floor.held(broken)
    assert held is not None
    assert held.runner is not None
    held.runner.abandon(Ending("failed", "a fault"), finish_s=0.0)
    await here.post(f"/v1/sessions/{cancelled}/cancel")
    gate.is_open.set()
    assert (await ours.ended(here, broken))["status"] == "failed"
    assert (await ours.ended(here, cancelled))["status"] == "cancelled"
    is_gone(ours, redis_client)
    theirs = await serve(heard)
    there = theirs.client()
    shown = await becomes(there, broken, lambda shown: shown["status"] == "idle")
    assert words_of(shown)[-1] == "two"
    assert (await there.get(f"/v1/sessions/{cancelled}")).json()["status"] == "cancelled"
    assert not (theirs.state_dir / "sessions" / cancelled / MESSAGES).exists(), "nobody wants it to be heard"
    await there.post(f"/v1/sessions/{broken}/cancel")


async def test_two_messages_at_once_to_a_session_that_has_ended_are_both_heard(serve: Serves) -> None:
    served = await serve(heard)
    client = served.client()
    session_id = await made(client, **prompt("one"))
    await served.ended(client, session_id)
    await asyncio.gather(say(client, session_id, "two"), say(client, session_id, "three"))
    shown = await becomes(client, session_id, lambda shown: len(words_of(shown)) == 3)
    assert sorted(words_of(shown)) == ["one", "three", "two"]
    await served.ended(client, session_id)
    assert set(segments(served.state_dir / "sessions" / session_id)) == {1, 2}


async def test_a_message_that_a_server_did_not_take_from_another_one_before_it_ended_the_session_is_heard(
    serve: Serves, gate: Gate, redis_client: redis.Redis
) -> None:
    ours, theirs = await serve(gate), await serve(heard)
    here, there = ours.client(), theirs.client()
    session_id = await made(here, **prompt("one"))
    await becomes(there, session_id, lambda shown: shown["status"] == "running")
    # It hears nothing any more of what others want.
    for task in ours.sessions.cluster.ownership._tasks:
        task.cancel()
    saying = asyncio.create_task(say(there, session_id, "two"))
    async with asyncio.timeout(60):
        while not redis_client.exists(keys.wishes(session_id)):
            await asyncio.sleep(0.02)
    gate.is_open.set()
    assert (await ours.ended(here, session_id))["text"] == "one"
    await saying
    shown = await becomes(there, session_id, lambda shown: shown["text"] != "one" and shown["status"] == "completed")
    assert words_of(shown) == ["one", "two"]
    assert not redis_client.exists(keys.wishes(session_id))
