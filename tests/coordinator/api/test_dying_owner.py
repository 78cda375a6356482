"""What is wanted of a session whose server dies, has died or did not hear of it: done by the next one, or refused."""

import asyncio

import pytest
import redis

from coordinator.cluster.wishes import Wish
from coordinator.service import afar
from tests.coordinator.api.conftest import Serves, code, prompt
from tests.coordinator.api.test_elsewhere import becomes, dies, heard, made
from worker.contract import keys


@pytest.mark.parametrize("when", ["before it is asked", "before it hears", "before it answers"])
async def test_what_is_about_a_session_at_work_is_told_by_whoever_goes_on_with_it_when_its_owner_dies(
    serve: Serves, redis_client: redis.Redis, when: str
) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    there = theirs.client()
    session_id = await made(ours.client(), **prompt("one", stay_open=True))
    path = f"/v1/sessions/{session_id}"
    await becomes(there, session_id, lambda shown: shown["status"] == "idle")
    taken, taking = list[Wish](), list[asyncio.Task[None]]()

    async def take() -> None:
        taken.extend(await ours.sessions.cluster.wishes.take(session_id))

    def look(session: str) -> None:
        if when == "before it answers":
            taking.append(asyncio.create_task(take()))

    # It lives, and does nothing of what it is asked: as if it were just dying.
    ours.sessions.cluster.ownership.on_wishes = look
    if when == "before it is asked":
        await dies(ours, session_id, redis_client)
    asking = [
        asyncio.create_task(there.post(f"{path}/fork", json=prompt("two"))),
        asyncio.create_task(there.post(f"{path}/steps/1/cancel")),
    ]
    if when != "before it is asked":
        async with asyncio.timeout(10):
            while len(taken) + redis_client.llen(keys.wishes(session_id)) < 2:
                await asyncio.sleep(0.01)
        await dies(ours, session_id, redis_client)
    forked, cancelled = await asyncio.gather(*asking)
    # No worker is here: only whoever has the session knows that it has no workspace yet.
    assert (forked.status_code, "has no workspace yet" in forked.text) == (409, True), forked.text
    assert cancelled.status_code in (202, 404), cancelled.text
    if cancelled.status_code == 202:
        assert (when != "before it is asked", cancelled.json()["calls"]) == (True, []), "nobody has said so yet"
    assert redis_client.llen(keys.wishes(session_id)) == 0


async def test_who_waits_in_vain_for_somebody_to_go_on_with_a_session_is_told_what_to_do(
    serve: Serves, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(afar, "TAKEOVER_S", 1.0)
    ours, theirs = (await serve(heard), await serve(heard))
    there = theirs.client()
    session_id = await made(ours.client(), **prompt("one", stay_open=True))
    await becomes(there, session_id, lambda shown: shown["status"] == "idle")
    # It has no room for one more.
    theirs.sessions.floor.line._most = 0
    await dies(ours, session_id, redis_client)
    for path, body in (("fork", prompt("two")), ("steps/1/cancel", None)):
        asked = await there.post(f"/v1/sessions/{session_id}/{path}", json=body)
        assert (asked.status_code, code(asked), asked.headers["retry-after"]) == (503, "UNAVAILABLE", "3"), asked.text
        assert "sandhog resume" in asked.json()["error"]["fix"]
    assert redis_client.llen(keys.wishes(session_id)) == 0


@pytest.mark.parametrize("through", ["its own server", "another one"])
async def test_a_cancel_that_was_accepted_outlives_the_server_that_had_not_come_to_it(
    serve: Serves, redis_client: redis.Redis, through: str
) -> None:
    ours, theirs = (await serve(heard), await serve(heard))
    here, there = ours.client(), theirs.client()
    session_id = await made(here, loop="none")
    path = f"/v1/sessions/{session_id}"
    await becomes(there, session_id, lambda shown: shown["status"] == "running")
    held = ours.sessions.floor.held(session_id)
    assert held is not None
    # What runs it looks at another one: it does not come to see that this is set.
    held.cancelled = asyncio.Event()
    accepted = await (here if through == "its own server" else there).post(f"{path}/cancel")
    assert (accepted.status_code, held.cancelled.is_set()) == (202, True)
    await dies(ours, session_id, redis_client)
    shown = await theirs.ended(there, session_id)
    assert shown["status"] == "cancelled", shown


async def test_of_a_cancel_nothing_is_left_once_the_session_has_ended(serve: Serves, redis_client: redis.Redis) -> None:
    ours, theirs = (await serve(heard, max_running=1), await serve(heard))
    here, there = ours.client(), theirs.client()
    sessions = [await made(here, loop="none") for _ in range(3)]
    for session_id, client in zip(reversed(sessions), (here, there, here), strict=True):
        for _ in range(2):
            assert (await client.post(f"/v1/sessions/{session_id}/cancel")).status_code == 202
        assert (await theirs.ended(there, session_id))["status"] == "cancelled"
    async with asyncio.timeout(10):
        while redis_client.keys(f"{keys.wishes('')}*"):
            await asyncio.sleep(0.02)


async def test_what_is_wanted_is_heard_also_where_the_word_of_it_is_lost(
    serve: Serves, redis_client: redis.Redis
) -> None:
    served = await serve(heard)
    client = served.client()
    session_id = await made(client, **prompt("one", stay_open=True))
    await becomes(client, session_id, lambda shown: shown["status"] == "idle")
    # Whoever has it is told in a list of its own; what it takes from there may go with the connection.
    await served.sessions.cluster.wishes.send(session_id, Wish(kind="message", text="two"), None)
    await asyncio.sleep(0.5)
    assert redis_client.llen(keys.wishes(session_id)) == 1, "nobody has said that there is something"
    redis_client.client_kill_filter(_type="normal", skipme=True)
    async with asyncio.timeout(20):
        await becomes(client, session_id, lambda shown: shown["text"].endswith("two"))
