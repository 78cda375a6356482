"""Single calls of a session are cancelled, through another server than the one that runs it; box, worker and all."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import docker
import httpx2
import pytest
import redis
from docker.errors import APIError

from coordinator.audit import AuditLog
from coordinator.client import Client
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from tests.cluster.commands import SANDHOG
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves, code
from worker.contract import keys
from worker.contract.orders import CallKey
from worker.contract.scripts import FENCED

pytestmark = [pytest.mark.docker, pytest.mark.shared_node]


class Said:
    """A model that makes these calls, then perhaps one more, and takes their answers."""

    def __init__(self, *calls: str | ScriptedCall, then: str = "") -> None:
        self.calls = tuple(bash(one) if isinstance(one, str) else one for one in calls)
        self.then = then
        self.answers: list[dict[str, Any]] = []

    def __call__(self, messages: list[dict[str, Any]]) -> Turn:
        self.answers = [json.loads(one["content"]) for one in messages if one["role"] == "tool"]
        if not self.answers:
            return Turn(calls=self.calls)
        return Turn(calls=(bash(self.then),)) if self.then and len(self.answers) == len(self.calls) else Turn("done")


def bash(command: str) -> ScriptedCall:
    return ScriptedCall("Bash", {"command": command})


@contextlib.asynccontextmanager
async def begun(
    embedded: Embedded, project: Path, model: Said
) -> AsyncIterator[tuple[Served, str, httpx2.AsyncClient]]:
    """A session that runs on one server, and a client of another one."""
    async with AsyncExitStack() as stack:
        serve = Serves(stack, embedded.redis_url, embedded.state_dir)
        ours, theirs = await serve(model, roots={"project": project}), await serve(model)
        body = {"prompt": "x", "workspace": "project", "bind": True, "policy": "boxed"}
        made = await ours.client().post("/v1/sessions", json=body)
        assert made.status_code == 201, made.text
        yield theirs, str(made.json()["session_id"]), theirs.client()


async def until(is_so: Any, what: str) -> None:
    async with asyncio.timeout(90):
        while not is_so():
            await asyncio.sleep(0.02)
    assert is_so(), what


def claim(embedded: Embedded, session: str, index: int) -> str:
    key = CallKey(session=session, generation=1, step=1, index=index)
    with redis.Redis.from_url(embedded.redis_url) as client:
        held = client.get(keys.claim(str(key)))
    return held.decode() if isinstance(held, bytes) else ""


def command(embedded: Embedded, *arguments: str) -> "subprocess.CompletedProcess[str]":
    places = {"SANDHOG_REDIS_URL": embedded.redis_url, "SANDHOG_STATE_DIR": str(embedded.state_dir)}
    return subprocess.run(
        [*SANDHOG, *arguments], env={**os.environ, **places}, capture_output=True, text=True, timeout=60, check=False
    )


async def test_links_of_a_chain_are_cancelled_one_by_one_and_the_others_run_on(
    embedded: Embedded, project: Path
) -> None:
    model = Said("echo so far; touch begun; sleep 200", "touch never", "echo third", "touch never", "ls")
    async with begun(embedded, project, model) as (theirs, session, there):
        path = f"/v1/sessions/{session}"
        await until((project / "begun").exists, "the first link runs")
        for index in (1, 3):
            waiting = await there.post(f"{path}/calls/1.{index}/cancel")
            assert waiting.status_code == 202, waiting.text
            assert waiting.json() == {"calls": [{"name": f"1.{index}", "has_begun": False}]}
            assert claim(embedded, session, index) == FENCED, "no node may begin it any more"
        assert (await there.get(path)).json()["status"] == "running"
        with Client(theirs.base_url, FIRST_TOKEN) as client:
            running = await asyncio.to_thread(client.cancel_call, session, "1.0")
        assert running == {"calls": [{"name": "1.0", "has_begun": True}]}
        shown = await theirs.ended(there, session)
        assert (shown["status"], shown["text"], shown["calls"]) == ("completed", "done", 5), shown
        for name, status, error in (
            ("calls/1.0", 409, "CONFLICT"),
            ("steps/1", 409, "CONFLICT"),
            ("calls/1.5", 404, "NOT_FOUND"),
            ("calls/2.0", 404, "NOT_FOUND"),
            ("steps/7", 404, "NOT_FOUND"),
        ):
            refused = await there.post(f"{path}/{name}/cancel")
            assert (refused.status_code, code(refused)) == (status, error), refused.text
        assert "had ended" in (await there.post(f"{path}/calls/1.0/cancel")).json()["error"]["message"]
    killed, never, third, neither, listed = model.answers
    assert killed["error"]["code"] == never["error"]["code"] == neither["error"]["code"] == "CANCELLED"
    assert killed["error"]["message"].startswith("A person cancelled this call.")
    assert killed["text"].strip() == "so far", "what it had printed is kept"
    assert never["error"]["message"] == neither["error"]["message"] == "A person cancelled this call before it ran."
    assert (third["status"], third["text"].strip()) == ("success", "third")
    assert "begun" in listed["text"]
    assert "never" not in listed["text"]
    assert f"POST {path}/calls/1.1/cancel" in AuditLog(embedded.state_dir).path.read_text()


async def test_a_step_is_cancelled_with_all_its_calls_and_the_session_goes_on(
    embedded: Embedded, project: Path
) -> None:
    model = Said("cat a.txt", "touch begun; sleep 200", "touch never", "cat b.txt")
    async with begun(embedded, project, model) as (theirs, session, there):
        await until((project / "begun").exists, "the second call runs")
        done = await asyncio.to_thread(command, embedded, "cancel", session, "--step", "1")
        assert done.returncode == 0, done.stderr
        ends, never = "is being ended", "never begins"
        said = [f"{session} call 1.{at} {what}" for at, what in ((1, ends), (2, never), (3, never))]
        assert done.stdout.splitlines() == said
        shown = await theirs.ended(there, session)
        assert (shown["status"], shown["text"]) == ("completed", "done")
        late = await asyncio.to_thread(command, embedded, "cancel", session, "--call", "1.1")
        assert (late.returncode, late.stdout) == (1, f"Call 1.1 of session {session} had ended.\n")
    first, *others = model.answers
    assert "alpha" in first["text"], "what had ended stays as it is"
    assert [one["error"]["code"] for one in others] == ["CANCELLED"] * 3
    assert all("A person cancelled this call" in one["error"]["message"] for one in others)
    assert not (project / "never").exists()


def searches(embedded: Embedded, file: str) -> list[str]:
    """The processes in the node's boxes that search a file."""
    found: list[str] = []
    with contextlib.closing(docker.from_env()) as client:
        for box in client.containers.list(filters={"label": f"sandhog.node={embedded.node}"}):
            # It may only just be starting.
            with contextlib.suppress(APIError):
                found += [process[-1] for process in box.top()["Processes"] or ()]
    return [command for command in found if file in command]


async def test_one_of_the_calls_that_run_together_is_cancelled_and_those_beside_it_end_as_they_would(
    embedded: Embedded, project: Path
) -> None:
    # They take no room on the disk; the first one is read for longer than any search may take.
    for name, size_bytes in (("endless.bin", 1 << 43), ("long.bin", 1 << 32)):
        with (project / name).open("wb") as file:
            file.truncate(size_bytes)
    model = Said(
        ScriptedCall("Read", {"path": "a.txt"}),
        ScriptedCall("Grep", {"pattern": "nothing", "path": "endless.bin"}),
        ScriptedCall("Grep", {"pattern": "nothing", "path": "long.bin"}),
        ScriptedCall("Read", {"path": "b.txt"}),
        then="ps ax | grep -c 'endless[.]bin'",
    )
    async with begun(embedded, project, model) as (theirs, session, there):
        await until(lambda: searches(embedded, "endless.bin"), "both searches run together")
        done = await asyncio.to_thread(command, embedded, "cancel", session, "--call", "1.1")
        assert (done.returncode, done.stdout) == (0, f"{session} call 1.1 is being ended\n"), done.stderr
        shown = await theirs.ended(there, session)
        assert (shown["status"], shown["text"], shown["calls"]) == ("completed", "done", 5), shown
    first, cancelled, beside, last, listed = model.answers
    assert ("alpha" in first["text"], "gamma" in last["text"]) == (True, True)
    assert cancelled["error"]["code"] == "CANCELLED"
    assert cancelled["error"]["message"].startswith("A person cancelled this call."), cancelled
    assert (beside["status"], beside["text"].startswith("No line matches")) == ("success", True), beside
    assert listed["text"].split()[0] == "0", "its process is gone from the box"
