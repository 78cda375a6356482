"""Nodes that come and go under running sessions; several on one host are the same as one on each of several."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.session_events import BoxReplaced, Notice, SessionPlaced
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Played, Stage, Start, leftover_containers
from tests.cluster.machines import REPOSITORY, Server
from worker.contract import keys
from worker.contract.orders import NodeLife

pytestmark = pytest.mark.docker

WAIT_S = 100.0


@pytest.fixture
async def stage(server: Server, state_dir: Path, project: Path) -> AsyncIterator[Stage]:
    async with open_cluster(server.url, state_dir) as cluster:
        yield Stage(cluster, project)


def bash(command: str, **arguments: Any) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command, **arguments}),))


def in_turn(turns: list[Turn]) -> Callable[[list[dict[str, Any]]], Turn]:
    """A script that goes on also behind a message to the model."""
    return lambda messages: turns[sum(message["role"] == "assistant" for message in messages)]


def contents(played: Played) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def placed(events: list[Any]) -> list[str]:
    """The nodes that a session was on, in order."""
    return [event.node for event in events if isinstance(event, SessionPlaced)]


async def there(directory: Path, name: str) -> Path:
    """Wait until a private copy below the volume has a file of this name."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for pattern in (f"sessions/*/work/{name}", f"sessions/*/disk/work/{name}"):
                found = await asyncio.to_thread(lambda: list(directory.glob(pattern)))  # noqa: B023
                if found:
                    return found[0]
            await asyncio.sleep(0.05)


async def gone(claim: Callable[[], object]) -> None:
    """Wait until there is nothing of this any more."""
    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(claim):
            await asyncio.sleep(0.2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "is_over", [False, pytest.param(True, marks=pytest.mark.long)], ids=["while_it_runs", "when_it_has_ended"]
)
async def test_a_session_whose_node_is_lost_goes_on_at_another(
    stage: Stage, state_dir: Path, start: Start, is_over: bool
) -> None:
    """The lost node's box stands still before the other one writes, and is ended when the node comes back."""
    settings = {"freeze_s": "2", "dead_man_s": "100"}
    nodes = {node.name: node for node in (start("a", **settings), start("b", **settings))}
    seen: list[Any] = []
    ticking = bash("while true; do echo t >> ticks; sleep 0.1; done", background=True)
    counts = "cat log; wc -l < ticks; sleep 1; wc -l < ticks"
    turns = [
        ticking,
        bash("echo x >> log; touch begun; sleep 300"),
        bash(counts),
        bash("touch again; until [ -e go ]; do sleep 0.1; done; echo y >> log"),
        Turn("done"),
    ]
    playing = asyncio.create_task(stage.play(in_turn(turns), copy=True, sinks=(seen.append,)))
    await there(state_dir, "begun")
    first = nodes[placed(seen)[0]]
    first.process.kill()
    await asyncio.to_thread(first.process.wait)

    again = await there(state_dir, "again")
    if is_over:
        (again.parent / "go").touch()
        await playing
    assert await asyncio.to_thread(leftover_containers, first.name)
    # Back at last, it ends its box, whose session is another one's by now, or nobody's.
    first.start()
    await gone(lambda: leftover_containers(first.name))
    if not is_over:
        (again.parent / "go").touch()
    played = await playing

    assert played.result.status == "completed", played.result
    assert len(placed(played.events)) == 2
    assert set(placed(played.events)) == set(nodes)
    _, lost, counted, last = contents(played)
    assert lost["error"]["code"] == "OUTCOME_UNKNOWN", lost
    log, before, after = counted["text"].split()
    assert (log, before) == ("x", after), "nothing writes there but the session's present box"
    assert last["status"] == "success", last
    assert [one for one in played.events if isinstance(one, BoxReplaced)]
    assert "fresh sandbox" in str(played.requests[-1]["messages"])
    assert "+x\n+y" in (played.result.patch or "")


@pytest.mark.timeout(240)
async def test_a_session_on_a_directory_whose_node_left_goes_on_at_another_of_that_machine(
    stage: Stage, start: Start
) -> None:
    nodes = {node.name: node for node in (start("a"), start("b"))}
    seen: list[Any] = []
    has_left = threading.Event()
    turns = [bash("echo x >> log"), bash("echo y >> log; cat log"), Turn("done")]

    def script(messages: list[dict[str, Any]]) -> Turn:
        turn = in_turn(turns)(messages)
        if turn is turns[1]:
            has_left.wait(WAIT_S)
        return turn

    playing = asyncio.create_task(stage.play(script, sinks=(seen.append,)))
    await gone(lambda: not (stage.project / "log").exists())
    first = nodes[placed(seen)[0]]
    first.process.terminate()
    assert await asyncio.to_thread(first.process.wait) == 0
    has_left.set()
    played = await playing

    assert played.result.status == "completed", played.result
    assert set(placed(played.events)) == set(nodes)
    assert contents(played)[-1]["text"].split() == ["x", "y"]


@pytest.mark.timeout(240)
async def test_a_session_that_ends_as_its_node_is_told_to_end_has_its_patch(
    stage: Stage, state_dir: Path, server: Server, start: Start
) -> None:
    """The node has nothing more to do with what it is asked, as it waits for another session's command."""
    first = start("a")
    is_told = threading.Event()
    turns = [bash("echo x > log"), Turn("done")]

    def script(messages: list[dict[str, Any]]) -> Turn:
        turn = in_turn(turns)(messages)
        if turn is turns[-1]:
            is_told.wait(WAIT_S)
        return turn

    long = [bash("touch begun; until [ -e go ]; do sleep 0.1; done"), Turn("done")]
    working = asyncio.create_task(stage.play(in_turn(long), copy=True))
    begun = await there(state_dir, "begun")
    playing = asyncio.create_task(stage.play(script, copy=True))
    await there(state_dir, "log")
    start("b")
    first.process.terminate()
    with redis.Redis.from_url(server.url) as client:
        await gone(lambda: NodeLife.model_validate_json(client.get(keys.node(first.name)) or b"").state == "ready")
    is_told.set()
    await asyncio.wait({playing}, timeout=3.0)
    assert not playing.done()
    (begun.parent / "go").touch()
    played = await playing

    assert (played.result.status, played.result.notes) == ("completed", []), played.result
    assert "+x" in (played.result.patch or "")
    assert (await working).result.status == "completed"


@pytest.mark.timeout(240)
async def test_a_session_whose_node_is_ending_waits_with_its_next_call_and_makes_it_at_another(
    stage: Stage, state_dir: Path, server: Server, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session's command keeps the node for longer than a call is waited for that nobody takes."""
    monkeypatch.setattr("coordinator.cluster.settle.LAST_UNCLAIMED_S", 1.0)
    first = start("a")
    is_told = threading.Event()
    turns = [bash("echo x > log"), bash("echo y >> log; cat log"), Turn("done")]

    def script(messages: list[dict[str, Any]]) -> Turn:
        turn = in_turn(turns)(messages)
        if turn is turns[1]:
            is_told.wait(WAIT_S)
        return turn

    long = [bash("touch begun; until [ -e go ]; do sleep 0.1; done"), Turn("done")]
    working = asyncio.create_task(stage.play(in_turn(long), copy=True))
    begun = await there(state_dir, "begun")
    playing = asyncio.create_task(stage.play(script, copy=True))
    await there(state_dir, "log")
    second = start("b")
    first.process.terminate()
    with redis.Redis.from_url(server.url) as client:
        await gone(lambda: NodeLife.model_validate_json(client.get(keys.node(first.name)) or b"").state == "ready")
    # It reads on for a moment.
    await asyncio.sleep(2.5)
    is_told.set()
    await asyncio.wait({playing}, timeout=6.0)
    assert not playing.done()
    (begun.parent / "go").touch()
    played = await playing

    assert played.result.status == "completed", played.result
    assert contents(played)[1]["text"].split() == ["x", "y"], contents(played)
    assert placed(played.events) == [first.name, second.name]
    told = [event.text for event in played.events if isinstance(event, Notice)]
    assert [words for words in told if f"node {first.name} is ending" in words], told
    assert (await working).result.status == "completed"


def shown(server: Server, *argv: str) -> str:
    """What a command prints that is told this Redis."""
    environment = {**os.environ, "SANDHOG_REDIS_URL": server.url, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", "from coordinator.start import main; main()", *argv]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return run.stdout


@pytest.mark.timeout(240)
async def test_sessions_spread_over_nodes_obey_pins_and_leave_a_drained_one_empty(
    stage: Stage, server: Server, start: Start
) -> None:
    a, b = start("a", places="2", labels="zone=a,gpu=no"), start("b", places="2", labels="zone=b")
    hold = bash("mktemp -p . begun-XXXXXX; until [ -e go ]; do sleep 0.1; done")

    def begin(**request: Any) -> "asyncio.Task[Played]":
        return asyncio.create_task(stage.play([hold, Turn("done")], **request))

    async def is_there(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(await asyncio.to_thread(lambda: list(stage.project.glob("begun-*")))) < count:
                await asyncio.sleep(0.1)

    # Two on each, one of them by its pin; a fifth waits, and says so.
    spread = [begin(), begin(), begin(pins={"zone": "b"}), begin()]
    await is_there(4)
    waiting = asyncio.create_task(stage.play([hold, Turn("done")], principal="other"))
    listed = {
        one["node"]: one for one in json.loads(await asyncio.to_thread(shown, server, "nodes", "--json"))["nodes"]
    }
    assert {name: one["taken"] for name, one in listed.items()} == {a.name: 2, b.name: 2}
    assert listed[a.name]["labels"] == {"zone": "a", "gpu": "no"}
    assert "sandhog-box:latest" in listed[a.name]["images"]

    assert "no new sessions" in await asyncio.to_thread(shown, server, "drain", a.name)
    table = await asyncio.to_thread(shown, server, "nodes")
    assert any(a.name in line and "drained" in line for line in table.splitlines()), table
    (stage.project / "go").touch()
    played = [await one for one in (*spread, waiting)]
    assert [one.result.status for one in played] == ["completed"] * 5
    assert sorted(placed(one.events)[0] for one in played[:4]) == sorted([a.name] * 2 + [b.name] * 2)
    assert placed(played[2].events) == [b.name]
    assert placed(played[4].events) == [b.name], "the drained node had its places free again, too"
    assert any("number 1 of 1" in event.text for event in played[4].events if isinstance(event, Notice))

    assert "again" in await asyncio.to_thread(shown, server, "drain", a.name, "--undo")
    pinned = await stage.play([bash("true"), Turn("done")], pins={"gpu": "no"})
    assert placed(pinned.events) == [a.name]
    nowhere = await stage.play([bash("true"), Turn("done")], pins={"gpu": "yes"})
    assert "No worker has the labels gpu=yes" in nowhere.result.stop_reason
