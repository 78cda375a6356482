"""A `sandhog serve` that is asked to end: what it waits for, what it leaves, and how the next one goes on with that."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coordinator.client import Client
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import Turn
from tests.cluster.serving import TOKEN, Server, Until, ended, files, made, says, serving

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

LONG_S = "300"
"""A drain that no test would live to see the end of."""


def once(messages: list[dict[str, Any]]) -> Turn:
    """What the prompt says, then the end, whatever was said on the way."""
    return Turn("done") if any(message["role"] == "tool" for message in messages) else says(messages)


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(100) == 0, server.log.read_text()


def test_a_call_that_runs_when_its_server_ends_is_answered_at_the_next_one(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    cluster = {"SANDHOG_REDIS_URL": embedded.redis_url}
    with serving(once, state_dir, until, SANDHOG_DRAIN_S="0", **cluster) as server, server.client() as client:
        until(lambda: client.get("/readyz").status_code == 200, "the worker is there", 120)
        work = "touch begun; until [ -e go ]; do sleep 0.1; done; echo once | tee -a t; cat t"
        session_id = made(client, prompt=work)
        copies = state_dir / "sessions" / session_id
        until(lambda: files(copies, "begun"), "the call runs", 120)
        stop(server)
    (begun,) = copies.glob("**/begun")
    (begun.parent / "go").touch()
    with serving(once, state_dir, until, **cluster) as server, server.client() as client:
        assert ended(client, session_id)["status"] == "completed"
        said = client.get(f"/v1/sessions/{session_id}/transcript").text
    assert "may have run" not in said
    assert re.search(r'text\\+":\\+"once\\+nonce\\+"', said), "it ran one time"


def test_who_was_spoken_to_and_waits_for_a_turn_when_the_server_ends_hears_it_at_the_next_one(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    cluster = {"SANDHOG_REDIS_URL": embedded.redis_url}
    one_turn = {"SANDHOG_MAX_SESSIONS": "1", "SANDHOG_DRAIN_S": "0"}
    with serving(said, state_dir, until, **one_turn, **cluster) as server, server.client() as client:
        spoken_to = made(client, prompt="one")
        assert ended(client, spoken_to)["text"] == "1"
        idle = made(client, prompt="in the way", stay_open=True)
        until(lambda: client.get(f"/v1/sessions/{idle}").json()["status"] == "idle", "it has the turn", 60)
        assert client.post(f"/v1/sessions/{spoken_to}/message", json={"text": "two"}).status_code == 202
        stop(server)
    with serving(said, state_dir, until, **cluster) as server, server.client() as client:
        until(lambda: client.get(f"/v1/sessions/{spoken_to}").json()["text"] == "2", "it was heard", 60)
        assert ended(client, spoken_to)["status"] == "completed"
        assert client.post(f"/v1/sessions/{idle}/cancel").status_code == 202
        until(lambda: client.get(f"/v1/sessions/{idle}").json()["ended_at"], "it ends", 60)


def said(messages: list[dict[str, Any]]) -> Turn:
    """How often a person has spoken."""
    return Turn(str(sum(message["role"] == "user" for message in messages)))


def asks_of(client: httpx2.Client, session_id: str) -> list[Any]:
    return list(client.get(f"/v1/sessions/{session_id}/approvals").json()["approvals"])


def test_what_waits_for_somebody_does_not_hold_up_the_end_and_goes_on_at_the_next_server(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    cluster = {"SANDHOG_REDIS_URL": embedded.redis_url}
    command = {"command": "date +%s%N | tee t"}
    calls: dict[str, Any] = {"step": 1, "tool_calls": [{"id": "a", "name": "Bash", "arguments": command}]}
    with (
        serving(once, state_dir, until, SANDHOG_DRAIN_S=LONG_S, **cluster) as server,
        server.client() as client,
        ThreadPoolExecutor(4) as pool,
    ):
        until(lambda: client.get("/readyz").status_code == 200, "the worker is there", 120)
        asks, delegates = (made(client, prompt=said, policy="guarded") for said in ("mkdir d", "@mkdir d"))
        idle, posts = made(client, prompt="true", stay_open=True), made(client, loop="none")
        first = client.post(f"/v1/sessions/{posts}/tool_calls", json=calls).json()
        for session_id, status in ((asks, "waiting"), (delegates, "waiting"), (idle, "idle")):
            until(lambda: client.get(f"/v1/sessions/{session_id}").json()["status"] == status, status, 120)  # noqa: B023
        (asked,) = asks_of(client, asks)
        with server.client() as other:
            followed = [pool.submit(other.get, f"/v1/sessions/{one}/events") for one in (asks, idle)]
            held = pool.submit(other.get, f"/v1/sessions/{asks}", params={"wait": 300})
            stop(server)
            assert held.result().json()["status"] == "waiting"
            assert ["event: session_started" in one.result().text for one in followed] == [True, True]
        assert (
            "left for another server or the next start: 4 that wait for somebody, 0 at work" in server.log.read_text()
        )

    with (
        serving(once, state_dir, until, **cluster) as server,
        server.client() as client,
        Client(server.url, TOKEN) as own,
    ):
        # The question stands as it was asked, and so does its deadline.
        until(lambda: asks_of(client, asks) == [asked], "it is still asked", 60)
        assert client.post(f"/v1/sessions/{asks}/approvals/1.0", json={"decision": "allow"}).status_code == 200
        assert ended(client, asks)["status"] == "completed"
        # A sub-agent ends with its server; its session says so to the model, and nothing is asked for it any more.
        assert ended(client, delegates)["status"] == "completed"
        assert asks_of(client, delegates) == []
        assert "OUTCOME_UNKNOWN" in client.get(f"/v1/sessions/{delegates}/transcript").text
        until(lambda: client.get(f"/v1/sessions/{idle}").json()["status"] == "idle", "it waits again", 60)
        messages = own.tool_calls(posts, calls["tool_calls"], step=1)
        assert messages == first["messages"], "the step is known again, and did not run a second time"
        for session_id in (idle, posts):
            until(lambda: client.post(f"/v1/sessions/{session_id}/finish").status_code == 202, "it ends", 60)  # noqa: B023
            assert own.wait(session_id)["status"] == "completed"
