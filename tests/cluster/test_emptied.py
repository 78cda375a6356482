"""Redis is emptied under sessions on two nodes, each in the middle of a call: they go on as if nothing had been."""

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallFinished
from coordinator.session.history import validate
from coordinator.session.session_events import SessionPlaced
from coordinator.wiring import open_cluster
from tests.cluster.conftest import AGENT_UID, Played, Stage, Start, answers, leftover_containers
from tests.cluster.machines import Server
from tests.conftest import Until
from worker.contract import keys, scripts

pytestmark = pytest.mark.docker

SESSIONS = 20
WAIT_S = 120.0
HELD = "echo {n} >> log; touch begun-{n}; until [ -e go-{n} ]; do sleep 0.3; done; echo said {n}"
"""A command that runs until it is let go."""
STAYS = ("sandhog:node:", "sandhog:nodes", "sandhog:lease:", "sandhog:coordinator", "_kombu.")
"""What begins the keys of nodes and coordinators that are there."""


@pytest.fixture
async def cluster(server: Server, state_dir: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(server.url, state_dir) as opened:
        yield opened


def projects(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"project-{number}" for number in range(SESSIONS)]
    for directory in made:
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, AGENT_UID, AGENT_UID)
    return made


def step(n: str) -> Turn:
    """A command that is held, and one behind it in its chain."""
    behind = ScriptedCall("Bash", {"command": f"echo {n}b >> log; echo said {n}b"})
    return Turn(calls=(ScriptedCall("Bash", {"command": HELD.format(n=n)}), behind))


def fenced(client: redis.Redis) -> int:
    """Calls of which Redis knows no claim any more, as their coordinator has found."""
    return sum(client.get(name) == scripts.FENCED.encode() for name in client.scan_iter(keys.claim("*")))


async def held_while(directories: Sequence[Path], n: str, act: Callable[[], None], url: str, until: Until) -> None:
    """Do something while each session is in the middle of its call `n`, and let them go on once that was noticed."""
    for directory in directories:
        await asyncio.to_thread(until, (directory / f"begun-{n}").exists, f"call {n} of {directory} runs", WAIT_S)
    await asyncio.to_thread(act)
    await asyncio.to_thread(until, lambda: answers(url), "Redis answers", WAIT_S)
    with redis.Redis.from_url(url) as client:
        everyone = partial(lambda: fenced(client) >= len(directories))
        await asyncio.to_thread(until, everyone, "each running call is missed in Redis", WAIT_S)
    for directory in directories:
        (directory / f"go-{n}").touch()


def left(url: str) -> list[str]:
    """What lies in Redis beside the nodes and coordinators that are there."""
    with redis.Redis.from_url(url) as client:
        names = sorted(name.decode() for name in client.scan_iter())
    return [name for name in names if not name.startswith((*STAYS, "sandhog:reply:"))]


def check(played: Played, directory: Path) -> None:
    """Every call has one answer, its own, and has run once."""
    assert played.result.status == "completed", played.result
    validate(played.requests[-1]["messages"], for_request=True)
    found = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert [content["text"].strip() for content in found] == ["said x", "said xb", "said y", "said yb"], found
    assert (directory / "log").read_text().split() == ["x", "xb", "y", "yb"]
    finished = [(event.step, event.index) for event in played.events if isinstance(event, CallFinished)]
    assert finished == [(1, 0), (1, 1), (2, 0), (2, 1)]


# Twenty boxes are started.
@pytest.mark.slow
@pytest.mark.timeout(280)
async def test_a_redis_that_is_emptied_under_running_sessions_costs_no_call_and_doubles_none(
    cluster: Cluster, server: Server, tmp_path: Path, start: Start, until: Until
) -> None:
    nodes = [await asyncio.to_thread(start, name, places=str(SESSIONS // 2)) for name in ("a", "b")]

    def flush() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()

    def begin_anew() -> None:
        server.kill()
        shutil.rmtree(server.directory / "appendonlydir")
        server.start()

    directories = projects(tmp_path)
    plays = [Stage(cluster, directory).play([step("x"), step("y"), Turn("done")]) for directory in directories]
    playing = asyncio.gather(*plays)
    try:
        await held_while(directories, "x", flush, server.url, until)
        await held_while(directories, "y", begin_anew, server.url, until)
        played = await asyncio.wait_for(playing, WAIT_S)
    finally:
        playing.cancel()

    for one, directory in zip(played, directories, strict=True):
        check(one, directory)
    on = Counter(event.node for one in played for event in one.events if isinstance(event, SessionPlaced))
    assert on == {node.name: SESSIONS // 2 for node in nodes}
    for node in nodes:
        await asyncio.to_thread(until, lambda: not leftover_containers(node.name), "no box is left", WAIT_S)  # noqa: B023
    await asyncio.to_thread(until, lambda: not left(server.url), f"nothing is left in Redis: {left(server.url)}")
