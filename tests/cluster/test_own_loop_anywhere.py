"""A caller's loop behind a load balancer: two `sandhog serve` of one cluster, a node with boxes, and a kill between."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coordinator.client import Client
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import Turn
from tests.cluster.serving import TOKEN, Server, Until, ended, files, made, serving

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]


@contextmanager
def two(embedded: Embedded, state_dir: Path, until: Until) -> Iterator[tuple[Server, Server]]:
    cluster = {"SANDHOG_REDIS_URL": embedded.redis_url, "SANDHOG_DRAIN_S": "0"}
    with (
        serving([Turn("unasked")], state_dir, until, **cluster) as ours,
        serving([Turn("unasked")], state_dir, until, **cluster) as theirs,
    ):
        for server in (ours, theirs):
            with server.client() as client:
                until(lambda: client.get("/readyz").status_code == 200, "the worker is there", 120)
        yield ours, theirs


def bash(name: int, command: str) -> dict[str, Any]:
    return {"step": name, "tool_calls": [{"id": "a", "name": "Bash", "arguments": {"command": command}}]}


def said(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    (message,) = answer.json()["messages"]
    return str(json.loads(message["content"])["text"])


def test_steps_go_to_any_server_and_run_once_also_when_their_owner_is_killed(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    with (
        two(embedded, state_dir, until) as (ours, theirs),
        ours.client() as here,
        theirs.client() as there,
        ThreadPoolExecutor(2) as pool,
    ):
        session_id = made(here, loop="none")
        path = f"/v1/sessions/{session_id}/tool_calls"
        once = bash(1, "echo one >> log; cat log")
        answers = [client.post(path, json=once) for client in (there, here, there)]
        assert [said(one).split() for one in answers] == [["one"]] * 3
        assert len({one.text for one in answers}) == 1

        large = bash(2, "echo two >> log; cat log; wc -c < large")
        large["tool_calls"].insert(
            0, {"id": "w", "name": "Write", "arguments": {"path": "large", "content": "#" * 200_000}}
        )
        written = there.post(path, json=large)
        assert written.status_code == 200, written.text
        told = [json.loads(one["content"]) for one in written.json()["messages"]]
        assert (told[0]["status"], told[1]["text"].split()) == ("success", ["one", "two", "200000"]), told
        assert here.post(path, json=large).json() == written.json()

        held = bash(3, "touch begun; until [ -e go ]; do sleep 0.1; done; echo three >> log; cat log; seq 9000")
        waiting = [pool.submit(there.post, path, json=held, params={"wait": 120}) for _ in range(2)]
        copies = state_dir / "sessions" / session_id
        until(lambda: files(copies, "begun"), "the call runs", 120)
        ours.process.send_signal(signal.SIGKILL)
        ours.process.wait()
        (begun,) = copies.glob("**/begun")
        until(lambda: len(list(copies.glob("*.jsonl"))) == 2, "the session is taken over", 60)
        (begun.parent / "go").touch()
        first = [one.result() for one in waiting]
        assert said(first[0]).split()[:4] == ["one", "two", "three", "1"]
        assert first[1].json() == first[0].json() == there.post(path, json=held).json()

        with Client(theirs.url, TOKEN) as own:
            calls = bash(4, "cat log")["tool_calls"]
            (last,) = own.tool_calls(session_id, calls, step=4)
            assert json.loads(last["content"])["text"].split() == ["one", "two", "three"]
            own.finish(session_id)
        assert ended(there, session_id)["status"] == "completed"


def test_a_step_that_a_killed_owner_left_running_is_ended_at_the_next_one_without_waiting_for_it(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    with two(embedded, state_dir, until) as (ours, theirs), ours.client() as here, theirs.client() as there:
        session_id = made(here, loop="none")
        path = f"/v1/sessions/{session_id}/tool_calls"
        slow = bash(1, "echo so far; touch begun; sleep 300")
        assert here.post(path, json=slow, params={"wait": 0}).status_code == 202
        until(lambda: files(state_dir / "sessions" / session_id, "begun"), "the call runs", 120)
        ours.process.send_signal(signal.SIGKILL)
        ours.process.wait()
        # Nobody has it; then whoever has it is still finding out what became of the call.
        answer = there.post(f"{path}/1/cancel", params={"wait": 60})
        assert (answer.status_code, answer.json()["status"]) == (200, "done"), answer.text
        content = json.loads(answer.json()["messages"][0]["content"])
        assert content["error"]["code"] == "CANCELLED", content
        assert content["error"]["message"].startswith("A person cancelled this call")
        assert content["text"].strip() == "so far", "what it had printed is kept"
        assert said(there.post(path, json=bash(2, "ls"))).split() == ["begun"]
        assert there.post(f"/v1/sessions/{session_id}/finish").status_code == 202
        assert ended(there, session_id)["status"] == "completed"


def test_a_loop_goes_on_at_the_other_server_when_its_own_ends_in_order(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    with two(embedded, state_dir, until) as (ours, theirs), ours.client() as here, theirs.client() as there:
        session_id = made(here, loop="none")
        path = f"/v1/sessions/{session_id}/tool_calls"
        assert said(there.post(path, json=bash(1, "echo one >> log; cat log"))).split() == ["one"]
        slow = bash(2, "touch begun; until [ -e go ]; do sleep 0.1; done; echo two >> log; cat log")
        copies = state_dir / "sessions" / session_id
        with ThreadPoolExecutor(2) as pool:
            at_owner, elsewhere = (
                pool.submit(client.post, path, json=slow, params={"wait": 120}) for client in (here, there)
            )
            until(lambda: files(copies, "begun"), "the call runs", 120)
            ours.process.send_signal(signal.SIGTERM)
            # Who waits at a server that ends is told where to go on.
            told = at_owner.result()
            assert (told.status_code, told.json()["status"]) == (202, "running"), told.text
            assert ours.process.wait(100) == 0, ours.log.read_text()
            (begun,) = copies.glob("**/begun")
            (begun.parent / "go").touch()
            assert said(elsewhere.result()).split() == ["one", "two"]
        assert said(there.get(told.headers["location"], params={"wait": 60})).split() == ["one", "two"]
        assert there.post(f"/v1/sessions/{session_id}/finish").status_code == 202
        assert ended(there, session_id)["status"] == "completed"
