"""Redis did what it was asked and its answer was lost, or came too late: no session loses its owner by that."""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient
from coordinator.errors import NoBox
from coordinator.mcp.served_box import ServedBox
from coordinator.session import takeover
from coordinator.session.approvals import Always
from coordinator.session.loop import Ending
from coordinator.session.model_table import ModelTable
from coordinator.session.reading import segments
from coordinator.session.result import SessionResult
from coordinator.session.resume import continuing
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TAKEOVER, TurnEnded
from coordinator.session.takeover import Adopted, TakeoverWatch, strays
from coordinator.session.transcript import segment_path
from tests.coordinator.lossy import LossyLink, open_link
from tests.coordinator.resuming import OneNode, in_memory_cluster
from tests.coordinator.ten_steps import cluster, endpoint, go_on, model, play, wanted
from worker.contract import keys
from worker.contract.orders import BoxOrder, NodeLife, PrepareOutcome

__all__ = ["cluster", "endpoint", "model"]

SILENT_S = 0.3


@pytest.fixture
async def lossy(redis_url: str, redis_server: Path, state: Path) -> AsyncIterator[tuple[LossyLink, Cluster]]:
    """A cluster whose Redis is at the other end of the link."""
    async with open_link(redis_server) as (link, url), in_memory_cluster(url, state, "adopter") as opened:
        yield link, opened


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def runner_of(cluster: Cluster, model: ModelClient, tmp_path: Path) -> SessionRunner:
    request = wanted(tmp_path, is_adoptable=True)
    return SessionRunner(request, cluster=cluster, model=model, approver=Always(), sinks=[])


@pytest.mark.parametrize("answered", range(6))
async def test_a_session_begins_whichever_answer_is_lost(
    lossy: tuple[LossyLink, Cluster], model: ModelClient, tmp_path: Path, answered: int
) -> None:
    link, cluster = lossy
    await play(cluster, model, wanted(tmp_path, is_adoptable=True))
    runner = runner_of(cluster, model, tmp_path)
    link.lose(keys.session(runner.session_id), after=answered)
    result = await runner.run(asyncio.Event())
    assert (link.lost, result.status, result.text) == (1, "completed", "All done."), result
    assert set(segments(runner.session_dir)) == {1}


async def test_a_session_begins_on_a_redis_that_stands_still(
    redis_url: str,
    redis_client: redis.Redis,
    state: Path,
    model: ModelClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.cluster.store.SILENT_S", SILENT_S)
    server = int(redis_client.info()["process_id"])
    async with in_memory_cluster(redis_url, state) as cluster:
        # From now on Redis knows the scripts.
        await play(cluster, model, wanted(tmp_path, is_adoptable=True))
        runner = runner_of(cluster, model, tmp_path)
        os.kill(server, signal.SIGSTOP)
        try:
            running = asyncio.create_task(runner.run(asyncio.Event()))
            await asyncio.wait({running}, timeout=5 * SILENT_S)
            assert not running.done()
        finally:
            os.kill(server, signal.SIGCONT)
        result = await running
    assert (result.status, result.text) == ("completed", "All done."), result


class Reluctant(OneNode):
    """Has a box from the second time on that it is asked for one."""

    asked = 0

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: object, **named: object) -> PrepareOutcome:
        self.asked += 1
        if self.asked == 1:
            raise NoBox("there is no such image")
        return await super().prepare(box, node)


async def test_a_served_box_that_could_not_be_had_is_had_later(cluster: Cluster, tmp_path: Path) -> None:
    on = Cluster(**{**vars(cluster), "placement": Reluctant()})
    box = ServedBox(wanted(tmp_path), cluster=on, approver=Always())
    refused, answered = [await box.start("Bash", {"command": "true"}, asyncio.Event()) for _ in range(2)]
    assert refused.error_code == "BOX_LOST"
    assert (answered.status, answered.error_message) == ("success", "")
    await box.close(why="done")


async def deserted(redis_url: str, state: Path, model: ModelClient, tmp_path: Path, owner: str) -> SessionRunner:
    """Return a session whose coordinator ended without it."""
    begun = asyncio.Event()

    async def never(turn: TurnEnded) -> str | None:
        begun.set()
        await asyncio.Event().wait()
        return None

    request = wanted(tmp_path, is_adoptable=True)
    async with in_memory_cluster(redis_url, state, owner) as first:
        runner = SessionRunner(request, cluster=first, model=model, approver=Always(), sinks=[], next_message=never)
        running = asyncio.create_task(runner.run(asyncio.Event()))
        await asyncio.wait_for(begun.wait(), 60)
        runner.abandon(Ending("failed", "the server ends", is_lost=True), finish_s=0.0)
        await running
    return runner


@pytest.mark.parametrize("answered", range(3))
async def test_a_session_is_resumed_in_the_next_generation_whichever_answer_is_lost(
    lossy: tuple[LossyLink, Cluster],
    redis_url: str,
    redis_client: redis.Redis,
    model: ModelClient,
    tmp_path: Path,
    answered: int,
) -> None:
    link, cluster = lossy
    left = await deserted(redis_url, cluster.state_dir, model, tmp_path, "dead")
    redis_client.delete(keys.coordinator_lease("dead"))
    link.lose(keys.session(left.session_id), after=answered)
    runner = await go_on(cluster, model, left.session_id)
    assert (await runner.run(asyncio.Event())).status == "completed"
    assert link.lost == 1
    assert set(segments(runner.session_dir)) == {1, 2}


class Adopter:
    """Goes on with what its watch adopts; as often as `fails` says that fails first."""

    def __init__(self, cluster: Cluster, model: ModelClient) -> None:
        self.cluster, self.model, self.fails = cluster, model, 0
        self.late_s = 0.0
        self.adopted: list[str] = []
        self.tasks: list[asyncio.Task[SessionResult]] = []

    async def go_on(self, adopted: Adopted) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the volume is away")
        self.adopted.append(adopted.session_id)
        self.tasks.append(asyncio.create_task(self._run(adopted)))

    async def _run(self, adopted: Adopted) -> SessionResult:
        await asyncio.sleep(self.late_s)
        runner = continuing(
            adopted.session_id,
            adopted.saved.to_request(ModelTable()),
            generation=adopted.generation,
            cluster=self.cluster,
            model=self.model,
            approver=Always(),
            sinks=[],
            by=TAKEOVER,
        )
        return await runner.run(asyncio.Event())

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not claim():
                await asyncio.sleep(0.02)


FAULTS = pytest.mark.parametrize("fault", ["none", "lost 0", "lost 1", "lost 2", "error", "late"])
"""Nothing, the answer that is lost of those about the session, an error once it is ours, or that it begins late."""


def let_fail(fault: str, link: LossyLink, adopter: Adopter, session: str) -> None:
    adopter.fails = int(fault == "error")
    # Ours is looked through several times before it begins.
    adopter.late_s = 3 * takeover.TIDY_S if fault == "late" else 0.0
    if fault.startswith("lost"):
        link.lose(keys.session(session), after=int(fault.split()[1]))


def is_one_session(runner: SessionRunner, adopter: Adopter, result: SessionResult) -> bool:
    whole = result.status == "completed" and set(segments(runner.session_dir)) == {1, 2}
    return whole and adopter.adopted.count(runner.session_id) == 1


@FAULTS
async def test_an_orphan_is_gone_on_with_once_whatever_comes_between(
    lossy: tuple[LossyLink, Cluster],
    redis_url: str,
    redis_client: redis.Redis,
    model: ModelClient,
    tmp_path: Path,
    fault: str,
) -> None:
    link, cluster = lossy
    adopter = Adopter(cluster, model)
    await deserted(redis_url, cluster.state_dir, model, tmp_path, "earlier")
    redis_client.flushall()
    async with TakeoverWatch(cluster, adopter.go_on):
        # From now on the volume has been looked through, and what comes is found in Redis alone.
        await adopter.until(lambda: len(adopter.tasks) == 1)
        left = await deserted(redis_url, cluster.state_dir, model, tmp_path, "dead")
        let_fail(fault, link, adopter, left.session_id)
        redis_client.delete(keys.coordinator_lease("dead"))
        await adopter.until(lambda: len(adopter.tasks) == 2)
        results = await asyncio.gather(*adopter.tasks)
        await adopter.until(lambda: not redis_client.exists(keys.owned("adopter")))
    assert is_one_session(left, adopter, results[1]), results
    assert link.lost == fault.startswith("lost")


@FAULTS
async def test_what_an_emptied_redis_lost_is_gone_on_with_once_whatever_comes_between(
    lossy: tuple[LossyLink, Cluster],
    redis_url: str,
    redis_client: redis.Redis,
    model: ModelClient,
    tmp_path: Path,
    fault: str,
) -> None:
    link, cluster = lossy
    adopter = Adopter(cluster, model)
    left = await deserted(redis_url, cluster.state_dir, model, tmp_path, "dead")
    redis_client.flushall()
    let_fail(fault, link, adopter, left.session_id)
    async with TakeoverWatch(cluster, adopter.go_on):
        await adopter.until(lambda: bool(adopter.tasks))
        result = await adopter.tasks[0]
        await adopter.until(lambda: not redis_client.exists(keys.owned("adopter")))
    assert is_one_session(left, adopter, result), result
    assert link.lost == fault.startswith("lost")


async def test_what_an_emptied_redis_lost_is_adopted_when_there_is_room_and_its_writer_is_gone(
    cluster: Cluster,
    redis_url: str,
    redis_client: redis.Redis,
    model: ModelClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(takeover, "STRAYS_S", 0.2)
    left = [await deserted(redis_url, cluster.state_dir, model, tmp_path, "dead") for _ in range(3)]
    written = left[0]
    redis_client.flushall()
    room = 1
    adopter = Adopter(cluster, model)
    (segment,) = segments(written.session_dir).values()
    with segment.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        async with TakeoverWatch(cluster, adopter.go_on, lambda: room - len(adopter.tasks)):
            await adopter.until(lambda: len(adopter.tasks) == 1)
            room = 9
            await adopter.until(lambda: len(adopter.tasks) == 2)
            assert written.session_id not in adopter.adopted
            fcntl.flock(file, fcntl.LOCK_UN)
            await adopter.until(lambda: len(adopter.tasks) == 3)
            results = await asyncio.gather(*adopter.tasks)
    assert sorted(adopter.adopted) == sorted(one.session_id for one in left)
    assert {result.status for result in results} == {"completed"}


async def test_what_is_handed_on_and_found_on_the_volume_at_once_is_taken_over_once(
    cluster: Cluster,
    redis_url: str,
    redis_client: redis.Redis,
    model: ModelClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = await deserted(redis_url, cluster.state_dir, model, tmp_path, "dead")
    redis_client.delete(keys.coordinator_lease("dead"))
    handed: list[int] = []

    async def go_on(adopted: Adopted) -> None:
        handed.append(adopted.generation)

    def look(*arguments: Any) -> dict[str, bool]:
        found = strays(*arguments)
        assert (handed, found) == ([2], {left.session_id: True}), "it is an orphan, and the volume has it"
        # It begins to write in this very moment, and is not ours in `ownership` before Redis was asked.
        segment_path(left.session_dir, left.session_id, 2).touch()
        return found

    monkeypatch.setattr(takeover, "strays", look)
    async with TakeoverWatch(cluster, go_on) as watch:
        async with asyncio.timeout(60):
            while watch._looked_at < 0:
                await asyncio.sleep(0.02)
    assert handed == [2]
