"""`sandhog serve` as its users have it: a process, tokens, HTTP, boxes."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coordinator.client import Client
from tests.cluster.commands import SANDHOG, SECRET
from tests.cluster.conftest import Furnished
from tests.cluster.serving import TOKEN, Server, Until, ended, made, says, serving

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def server(
    until: Until, docker_engine_or_skip: None, furnished_dir: Furnished, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for the tests that leave it as it is."""
    project = tmp_path_factory.mktemp("project")
    (project / "a.txt").write_text("alpha\nbeta\n")
    roots = json.dumps({"project": str(project)})
    with (
        furnished_dir() as state_dir,
        serving(says, state_dir, until, SANDHOG_ROOTS=roots, SANDHOG_DRAIN_S="5") as server,
    ):
        with server.client() as client:
            until(lambda: client.get("/readyz").status_code == 200, "its worker is there", 120)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def test_a_session_over_http_from_create_to_patch(client: httpx2.Client, server: Server) -> None:
    session_id = made(client, prompt="cat a.txt; echo gamma >> a.txt; echo new > n.txt", workspace="project")
    shown = ended(client, session_id)
    assert (shown["status"], shown["text"]) == ("completed", "ran 1"), shown
    assert (shown["workspace"], shown["workspace_mode"]) == ("project", "copy")
    patch = client.get(f"/v1/sessions/{session_id}/patch").text
    assert "+gamma" in patch
    assert "+new" in patch
    events = client.get(f"/v1/sessions/{session_id}/events").text
    assert "event: call_finished" in events
    assert client.get("/v1/nodes").json()["nodes"][0]["is_alive"]
    assert client.get("/v1/principals/me").json()["principal"] == "local"
    transcript = client.get(f"/v1/sessions/{session_id}/transcript").text
    for secret in (SECRET, TOKEN):
        assert secret not in events + transcript + server.log.read_text()


def test_calls_of_a_loop_outside_run_once_and_are_answered_in_order(client: httpx2.Client) -> None:
    session_id = made(client, loop="none", workspace="project")
    tools = client.get(f"/v1/sessions/{session_id}/tools").json()["tools"]
    assert {"Read", "Bash"} <= {tool["function"]["name"] for tool in tools}
    assert "Task" not in {tool["function"]["name"] for tool in tools}
    path = f"/v1/sessions/{session_id}/tool_calls"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "step": 1,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a.txt"}'}},
            {"id": "b", "name": "Bash", "arguments": {"command": "echo once >> log; cat log"}, "index": 1},
            {"id": "c", "type": "function", "function": {"name": "Fly", "arguments": "{"}},
        ],
    }
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: client.post(path, json=message), range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
    first = answers[0].json()
    assert [answer.json() for answer in answers] == [first] * 3
    assert [(one["role"], one["tool_call_id"]) for one in first["messages"]] == [
        ("tool", "a"),
        ("tool", "b"),
        ("tool", "c"),
    ]
    contents = [json.loads(one["content"]) for one in first["messages"]]
    assert "alpha" in contents[0]["text"]
    assert contents[1]["text"].split() == ["once"], "three requests, one run"
    assert contents[2]["error"]["code"] == "UNKNOWN_TOOL"

    other = client.post(path, json={**message, "tool_calls": message["tool_calls"][:1]})
    assert other.status_code == 409
    assert client.get(f"{path}/1").json() == first

    slow = {"step": "two", "tool_calls": [{"id": "d", "name": "Bash", "arguments": {"command": "sleep 60"}}]}
    running = client.post(path, json=slow, params={"wait": 0.2})
    assert running.status_code == 202
    assert running.json()["status"] == "running"
    assert running.headers["location"] == f"{path}/two"
    assert client.get(f"{path}/1").status_code == 404, "answers are kept until the next step"
    assert client.post(path, json={**slow, "step": "three"}).status_code == 409
    assert client.post(f"/v1/sessions/{session_id}/finish").status_code == 409
    cancelled = client.post(f"{path}/two/cancel").json()
    assert cancelled["status"] == "done"
    assert json.loads(cancelled["messages"][0]["content"])["error"]["code"] == "CANCELLED"

    without = {"tool_calls": [{"id": "e", "name": "Bash", "arguments": '{"command": "echo more >> log; cat log"}'}]}
    for _ in range(2):
        answer = client.post(path, json=without).json()
        assert json.loads(answer["messages"][0]["content"])["text"].split() == ["once", "more"]
    nameless = client.post(path, json={"tool_calls": [{"name": "Bash", "arguments": {"command": "true"}}]})
    assert nameless.status_code == 422
    assert client.post(f"/v1/sessions/{session_id}/message", json={"text": "x"}).status_code == 409
    assert client.post(f"/v1/sessions/{session_id}/finish", json={"text": "thanks"}).status_code == 202
    shown = ended(client, session_id)
    assert (shown["status"], shown["text"], shown["calls"]) == ("completed", "thanks", 5), shown
    assert "+once" in client.get(f"/v1/sessions/{session_id}/patch").text
    assert client.post(path, json=message).status_code == 409


def test_a_person_answers_talks_and_changes_limits(client: httpx2.Client, until: Until) -> None:
    session_id = made(client, prompt="mkdir d; mv d e", policy="guarded", stay_open=True, limits={"steps": 9})
    path = f"/v1/sessions/{session_id}"
    until(lambda: bool(client.get(f"{path}/approvals").json()["approvals"]), "it asks", 120)
    until(lambda: client.get(path).json()["status"] == "waiting", "and says so", 120)
    asked = client.get(f"{path}/approvals").json()["approvals"]
    assert [one["text"] for one in asked] == ["mkdir d; mv d e"]
    answer = client.post(f"{path}/approvals", json={"name": asked[0]["name"], "decision": "deny", "note": "not now"})
    assert answer.json() == {"name": asked[0]["name"], "decision": "deny", "by": "local over the API"}
    late = client.post(f"{path}/approvals/{asked[0]['name']}", json={"decision": "allow"})
    assert late.status_code in (404, 409)
    until(lambda: client.get(path).json()["status"] == "idle", "it waits for a message", 120)

    assert client.patch(f"{path}/limits", json={"calls": 7}).json()["calls"] == 7
    assert client.patch(f"{path}/limits", json={"calls": 0}).status_code == 422
    assert client.post(f"{path}/message", json={"text": "echo again"}).status_code == 202
    until(lambda: client.get(path).json()["step"] == 4, "it has heard", 120)
    until(lambda: client.get(path).json()["status"] == "idle", "it waits again", 120)
    assert client.get(path).json()["limits"]["calls"] == 7
    assert client.post(f"{path}/finish").status_code == 202
    assert ended(client, session_id)["status"] == "completed"
    assert "not now" in client.get(f"{path}/transcript").text
    gone_on = client.post(f"{path}/message", json={"text": "true"})
    assert gone_on.status_code == 409
    assert "copy" in gone_on.json()["error"]["message"]


def test_what_a_sub_agent_asks_is_the_sessions_own_matter(client: httpx2.Client, server: Server, until: Until) -> None:
    session_id = made(client, prompt="@mkdir d; mv d e\n@touch f", policy="guarded")
    path = f"/v1/sessions/{session_id}"

    def statuses() -> set[str]:
        own = client.get(path).json()["status"]
        listed = client.get("/v1/sessions", params={"status": "waiting"}).json()["sessions"]
        typed = json.loads(server.command("ps", "--json", "--all").stdout)
        return {
            own,
            *("waiting" for one in listed if one["session_id"] == session_id),
            *(one["status"] for one in typed if one["session_id"] == session_id),
        }

    until(lambda: client.get(path).json()["status"] == "waiting", "the session waits with its sub-agent", 120)
    assert statuses() == {"waiting"}
    assert client.get(path).json()["approvals"] == 1
    (asked,) = client.get(f"{path}/approvals").json()["approvals"]
    assert (asked["name"], asked["agent"], asked["text"]) == ("1-1-0.1.0", "1-1-0", "mkdir d; mv d e")
    listed = server.command("approve", session_id).stdout
    assert listed.startswith(f"{session_id}.1-1-0 1.0: ")
    answer = client.post(f"{path}/approvals", json={"name": asked["name"], "decision": "deny", "note": "not now"})
    assert answer.json() == {"name": "1-1-0.1.0", "decision": "deny", "by": "local over the API"}

    until(lambda: bool(client.get(f"{path}/approvals").json()["approvals"]), "the next sub-agent asks", 120)
    assert server.command("approve", session_id, "1-2-0.1.0", "--deny").returncode == 0
    assert ended(client, session_id)["status"] == "completed"
    events = client.get(f"{path}/events").text
    told = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    of_children = [one["event"]["type"] for one in told if one["type"] == "child_event"]
    assert of_children == ["approval_asked", "approval_answered"] * 2


@pytest.mark.timeout(400)
def test_a_session_that_runs_is_forked_and_goes_on_as_if_nothing_had_been(
    client: httpx2.Client, server: Server, until: Until
) -> None:
    begun = "echo one > f.txt; seq 1 20000\nsleep 1000 > /dev/null & echo started"
    session_id = made(client, prompt=begun, workspace="project", stay_open=True)
    path = f"/v1/sessions/{session_id}"
    until(lambda: client.get(path).json()["status"] == "idle", "it waits for a message", 60)
    wanted = {"prompt": "cat f.txt; ls /spill; echo two >> f.txt", "labels": {"attempt": "b"}, "limits": {"steps": 5}}
    key = {"Idempotency-Key": "the-fork"}
    answer = client.post(f"{path}/fork", json=wanted, headers=key)
    assert answer.status_code == 201, answer.text
    fork_id = answer.json()["session_id"]
    assert (answer.json()["forked_from"], answer.json()["labels"]) == (session_id, {"attempt": "b"})
    again = client.post(f"{path}/fork", json=wanted, headers=key)
    assert (again.status_code, again.json()["session_id"]) == (200, fork_id)
    assert client.post(f"{path}/fork", json={"prompt": "other"}, headers=key).status_code == 409
    early = client.post(f"{path}/fork", json={"prompt": "x", "at_step": 1})
    assert early.status_code == 409
    assert "step 2 made calls behind step 1" in early.json()["error"]["message"]

    typed = server.command("fork", session_id, "cat f.txt; echo typed >> f.txt", "--json", "--keep")
    assert typed.returncode == 0, typed.stderr
    result = json.loads(typed.stdout)
    assert (result["status"], result["calls"]) == ("completed", 1), result
    assert "+typed" in result["patch"]
    assert '"by":"sandhog fork"' in Path(result["transcript"]).read_text()

    shown = ended(client, fork_id)
    assert (shown["status"], shown["text"], shown["calls"], shown["step"]) == ("completed", "ran 1", 1, 5), shown
    transcript = client.get(f"/v1/sessions/{fork_id}/transcript").text
    assert "session_forked" in transcript
    patch = client.get(f"/v1/sessions/{fork_id}/patch").text
    assert "+one\n+two" in patch, "its patch is from what the first session began with"
    assert client.get(path).json()["status"] == "idle"
    assert client.post(f"{path}/message", json={"text": "cat f.txt"}).status_code == 202
    until(lambda: client.get(path).json()["step"] == 5, "it goes on", 60)
    until(lambda: client.get(path).json()["status"] == "idle", "it waits again", 60)
    answers = [json.loads(line) for line in client.get(f"{path}/transcript").text.splitlines()]
    (seen,) = [one["answer"] for one in answers if one["type"] == "call_finished" and one["step"] == 4]
    assert json.loads(seen)["text"].split() == ["one"], "no fork writes into it"
    assert client.post(f"{path}/finish").status_code == 202
    assert ended(client, session_id)["status"] == "completed"
    gone = client.post(f"{path}/fork", json={"prompt": "x"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "CONFLICT")
    assert "is gone" in gone.json()["error"]["message"]
    refused = server.command("fork", session_id, "x")
    assert (refused.returncode, "is gone" in refused.stderr) == (2, True), refused.stderr


def test_a_session_whose_copy_was_kept_is_forked_as_often_as_one_likes(client: httpx2.Client, server: Server) -> None:
    session_id = made(client, prompt="echo one > f.txt", workspace="project", keep="always")
    assert ended(client, session_id)["status"] == "completed"
    with Client(server.url, TOKEN) as own:
        forks = [own.fork(session_id, f"echo {text} >> f.txt", at_step=1)["session_id"] for text in "ab"]
        for fork_id, text in zip(forks, "ab", strict=True):
            assert own.wait(fork_id)["status"] == "completed"
            assert f"+one\n+{text}\n".encode() in own.patch(fork_id)
    events = client.get(f"/v1/sessions/{forks[0]}/events").text
    assert events.count("event: session_forked") == 1
    assert events.count("event: session_ended") == 1, "the end of the session that was forked is not the fork's"


@pytest.mark.timeout(400)
def test_the_lines_of_the_documentation_work_as_they_stand(server: Server, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S))
    assert shell.count("curl") > 15
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    command = bin_dir / "sandhog"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(SANDHOG)} "$@"\n')
    command.chmod(0o755)
    environment = {
        **server.environment,
        "PATH": f"{bin_dir}:{server.environment['PATH']}",
        "SANDHOG_URL": server.url,
        "NO_PROXY": "127.0.0.1",
    }

    def ran(argv: list[str], script: str) -> str:
        done = subprocess.run(
            argv, input=script, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
        return done.stdout

    # A reader that ends early must not fail the line, so no pipefail.
    out = ran(["bash", "-eu"], shell)
    assert "+more" in (tmp_path / "result.patch").read_text()
    assert '"tool_call_id":"call_2"' in out
    assert '"principal":"team-a"' in out
    assert "1 revoked" in out
    (python,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert "session_ended" in ran([sys.executable, "-"], python)
