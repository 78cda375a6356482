"""What a cluster gets over by itself: a node that hands over, a Redis that forgot, clocks that are wrong."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.step_events import ModelReplied
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Played, Stage, Start, answers
from tests.cluster.machines import Server
from tests.cluster.one_sided import OneSided
from tests.conftest import Until

pytestmark = pytest.mark.docker

WAIT_S = 100.0
IMPATIENT = """
import worker.anew
worker.anew.DRAIN_S = 0.2
from worker.__main__ import cli
cli()
"""
"""A worker that hands its calls over unfinished."""
WRONG_CLOCK = """
import datetime, time
import celery.worker.request as request
OFF_S = 36_000
right = time.time
time.time = lambda: right() + OFF_S
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=OFF_S)
request.datetime = Wrong
from worker.__main__ import cli
cli()
"""
"""A worker on a machine whose clock is wrong."""


@pytest.fixture
async def stage(server: Server, state_dir: Path, project: Path) -> AsyncIterator[Stage]:
    async with open_cluster(server.url, state_dir) as cluster:
        yield Stage(cluster, project)


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def contents(played: Played) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


async def once(path: Path) -> None:
    """Wait for a file."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(path.exists):
            await asyncio.sleep(0.02)


def when_replied(step: int, act: Callable[[], object]) -> Callable[[object], None]:
    """A sink that acts before a step's calls are sent."""

    def sink(event: object) -> None:
        if isinstance(event, ModelReplied) and event.step == step:
            act()

    return sink


@pytest.mark.timeout(240)
async def test_a_command_outlives_the_node_that_hands_over(stage: Stage, start: Start) -> None:
    """As an upgrade does it: hung up on, the node lets its boxes be, and the next process adopts them."""
    node = start("n", "-c", IMPATIENT, "run")
    command = "touch begun; until [ -e go ]; do sleep 0.05; done; echo x >> log; echo said"
    playing = asyncio.create_task(stage.play([bash(command), bash("cat log"), Turn("done")]))
    await once(stage.project / "begun")
    node.process.send_signal(signal.SIGHUP)
    assert await asyncio.to_thread(node.process.wait, WAIT_S) == 0, node.log()
    node.start()
    (stage.project / "go").touch()
    played = await asyncio.wait_for(playing, WAIT_S)

    assert played.result.status == "completed", played.result
    assert [content["text"].strip() for content in contents(played)] == ["said", "x"], contents(played)


@pytest.mark.timeout(240)
async def test_a_redis_that_lost_its_last_second_runs_nothing_twice(
    stage: Stage, server: Server, start: Start, until: Until
) -> None:
    """It comes back as it was before a call was sent and claimed, while the call runs."""
    start("n")
    kept = server.directory.with_name("kept")
    # Every command is on the disk when it is answered, so that a copy is a state that was.
    keep = when_replied(2, lambda: shutil.copytree(server.directory / "appendonlydir", kept))

    async def forget() -> None:
        await once(stage.project / "begun")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(shutil.rmtree, server.directory / "appendonlydir")
        await asyncio.to_thread(shutil.copytree, kept, server.directory / "appendonlydir")
        server.start()
        await asyncio.to_thread(until, lambda: answers(server.url), "Redis answers", WAIT_S)
        (stage.project / "go").touch()

    forgetting = asyncio.create_task(forget())
    command = "echo x >> log; touch begun; until [ -e go ]; do sleep 0.05; done; echo said"
    turns = [bash("true"), bash(command), bash("echo y >> log; cat log"), Turn("done")]
    played = await asyncio.wait_for(stage.play(turns, sinks=(keep,)), WAIT_S)
    await forgetting

    assert played.result.status == "completed", played.result
    assert [content["text"].split() for content in contents(played)] == [["(no", "output)"], ["said"], ["x", "y"]], (
        contents(played)
    )


@pytest.mark.timeout(240)
async def test_a_node_whose_clock_is_hours_wrong_works(stage: Stage, start: Start) -> None:
    start("n", "-c", WRONG_CLOCK, "run")
    turns = [Turn(calls=tuple(ScriptedCall("Bash", {"command": f"echo {n} >> log; cat log"}) for n in range(3)))]
    played = await asyncio.wait_for(stage.play([*turns, Turn("done")]), WAIT_S)

    assert [content["text"].split()[-1] for content in contents(played)] == ["0", "1", "2"], contents(played)


@pytest.mark.timeout(240)
async def test_a_cancel_reaches_a_node_whose_lanes_are_all_taken(stage: Stage, start: Start) -> None:
    """The command that runs ends with what it had printed; one that waits for the lane never starts."""
    start("n", lanes="1")
    running, waiting = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(stage.play([bash("echo so far; touch begun; sleep 200")], cancelled=running))
    await once(stage.project / "begun")
    waits, done = asyncio.Event(), Turn("done")

    def begun(event: object) -> None:
        if isinstance(event, CallStarted):
            waits.set()

    second = asyncio.create_task(stage.play([bash("touch never")], cancelled=waiting, sinks=(begun,)))
    third = asyncio.create_task(stage.play([bash("echo after"), done]))
    await asyncio.wait_for(waits.wait(), WAIT_S)
    waiting.set()
    assert (await asyncio.wait_for(second, WAIT_S)).result.status == "cancelled"
    running.set()
    ended = await asyncio.wait_for(first, WAIT_S)

    (finished,) = [event for event in ended.events if isinstance(event, CallFinished)]
    assert (ended.result.status, finished.error_code) == ("cancelled", "CANCELLED")
    assert "so far" in finished.answer
    assert contents(await asyncio.wait_for(third, WAIT_S))[0]["text"].strip() == "after"
    assert not (stage.project / "never").exists()


@pytest.mark.timeout(240)
async def test_a_node_that_redis_hears_but_that_hears_nothing_doubles_no_call(
    stage: Stage, server: Server, start: Start
) -> None:
    way = OneSided(server.directory / "s")
    async with way.open() as url:
        node = await asyncio.to_thread(start, "n", redis_url=url)

        def cut() -> None:
            way.is_cut = True
            asyncio.get_running_loop().call_later(4.0, setattr, way, "is_cut", False)

        turns = [bash("echo x >> log"), bash("echo y >> log; cat log"), bash("echo z >> log; cat log"), Turn("done")]
        played = await asyncio.wait_for(stage.play(turns, sinks=(when_replied(2, cut),)), WAIT_S)

        assert played.result.status == "completed", played.result
        first, second, third = contents(played)
        assert (first["status"], third["status"]) == ("success", "success"), contents(played)
        written = (stage.project / "log").read_text().split()
        # What was sent twice and lost twice is told as what it is: not run.
        assert written == (["x", "y", "z"] if second["status"] == "success" else ["x", "z"]), second
        assert second["status"] == "success" or "did not run" in second["error"]["message"].lower(), second
        node.process.terminate()
        assert await asyncio.to_thread(node.process.wait, WAIT_S) == 0, node.log()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", ["node", "coordinator"])
async def test_a_way_to_redis_that_loses_one_direction_and_then_the_other_doubles_no_call_and_loses_none(
    server: Server, state_dir: Path, project: Path, start: Start, part: str
) -> None:
    """First what Redis answers is lost, then what it is told; as a network does it, it ends with the connections.

    A node loses them when a call is on its way, a coordinator while it runs.
    """
    way = OneSided(server.directory / "s")

    def heal() -> None:
        way.hang_up()
        way.is_cut = way.is_mute = False

    def cut(direction: str) -> None:
        setattr(way, direction, True)
        asyncio.get_running_loop().call_later(4.0, heal)

    async def cut_when_begun(word: str, direction: str) -> None:
        await once(project / f"begun-{word}")
        cut(direction)

    cuts = {2: "is_cut", 4: "is_mute"}
    is_node = part == "node"
    sinks = [when_replied(step, partial(cut, lost)) for step, lost in cuts.items() if is_node]
    tasks = [asyncio.create_task(cut_when_begun("abcde"[step - 1], lost)) for step, lost in cuts.items() if not is_node]
    turns = [bash(f"echo {word} >> log; touch begun-{word}; sleep 1; echo said {word}") for word in "abcde"]
    async with way.open() as url:
        await asyncio.to_thread(start, "n", redis_url=url if is_node else server.url)
        async with open_cluster(server.url if is_node else url, state_dir) as cluster:
            playing = Stage(cluster, project).play([*turns, Turn("done")], sinks=tuple(sinks))
            played = await asyncio.wait_for(playing, WAIT_S)
        await asyncio.gather(*tasks)

    assert played.result.status == "completed", played.result
    found = contents(played)
    assert [content["text"].strip() for content in found] == [f"said {word}" for word in "abcde"], found
    assert (project / "log").read_text().split() == list("abcde")
