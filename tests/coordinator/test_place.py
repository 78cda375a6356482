"""A session's place: a node that fails is asked again, and a directory is where its machine is."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.parts import Cluster
from coordinator.cluster.placement import Placement
from coordinator.cluster.turns import PlaceWanted
from coordinator.endpoint.model import ModelClient
from coordinator.errors import NoBox, NodeTrouble
from coordinator.mcp.served_box import ServedBox
from coordinator.session.approvals import Always
from coordinator.session.session_events import Notice, SessionPlaced
from coordinator.session.transcript import segment_path
from coordinator.session.workspace_choice import Chosen
from tests.coordinator.resuming import OneNode, Table
from tests.coordinator.ten_steps import cluster, endpoint, events_of, go_on, model, play, wanted
from worker.contract import keys
from worker.contract.orders import BoxOrder, NodeLife, Policy, PrepareOutcome, WorkspaceMode

__all__ = ["cluster", "endpoint", "model"]

HOST, OTHER = "host-1", "host-2"


class Failing(OneNode):
    """Its node raises these, one each time that it is asked for a box, and has one then."""

    def __init__(self, *errors: NoBox) -> None:
        super().__init__()
        self.errors = list(errors)
        self.wanted: list[PlaceWanted] = []
        self.asked = 0

    async def place(self, session: str, home: str | None = None, *more: Any, **named: Any) -> NodeLife:
        self.wanted.append(more[0])
        return NodeLife(node="n1", incarnation="n1-1", places=9, lanes=9, host=HOST)

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: Any, **named: Any) -> PrepareOutcome:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return await super().prepare(box, node, *more, **named)


class Unheard(OneNode):
    """Redis does not hear in time that a session has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[str, int | None]] = []

    async def withdraw(self, session: str, node: str | None = None, *, away_s: float) -> bool:
        return False

    async def give_up(self, session: str, node: str | None = None, generation: int | None = None) -> None:
        self.given.append((session, generation))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.session.place.AGAIN_S", (0.0, 0.0))


def on(cluster: Cluster, placement: Placement) -> Cluster:
    return Cluster(**{**vars(cluster), "placement": placement})


async def test_a_node_that_fails_is_asked_again(cluster: Cluster, model: ModelClient, tmp_path: Path) -> None:
    node = Failing(NodeTrouble("it has been gone"), NodeTrouble("its engine is away"))
    result = await play(on(cluster, node), model, wanted(tmp_path))
    assert (result.status, node.asked) == ("completed", 3), result


async def test_a_node_that_goes_on_failing_ends_the_session(
    cluster: Cluster, model: ModelClient, tmp_path: Path
) -> None:
    node = Failing(*[NodeTrouble("its engine is away")] * 9)
    result = await play(on(cluster, node), model, wanted(tmp_path))
    assert (result.status, result.stop_reason) == ("failed", "box: its engine is away")
    assert node.asked == 3


async def test_what_a_session_has_in_a_redis_that_is_away_at_its_end_is_given_back_later(
    cluster: Cluster, model: ModelClient, tmp_path: Path
) -> None:
    node = Unheard()
    result = await play(on(cluster, node), model, wanted(tmp_path))
    async with asyncio.timeout(60):
        while node.given != [(result.session_id, 1)]:
            await asyncio.sleep(0.02)


async def test_a_refusal_is_no_trouble(cluster: Cluster, model: ModelClient, tmp_path: Path) -> None:
    node = Failing(NoBox("there is no such image"))
    result = await play(on(cluster, node), model, wanted(tmp_path))
    assert (result.status, node.asked) == ("failed", 1), result


def cut_in_first_call(transcript: Path) -> None:
    """Leave of a session what its coordinator had written that died in the first call."""
    lines = transcript.read_bytes().splitlines(keepends=True)
    transcript.write_bytes(b"".join(lines[: next(at for at, line in enumerate(lines) if b'"call_finished"' in line)]))
    (transcript.parent / "work").mkdir(exist_ok=True)


@pytest.mark.parametrize("mode", list(WorkspaceMode))
async def test_a_session_that_goes_on_stays_with_its_directory(
    cluster: Cluster, model: ModelClient, tmp_path: Path, mode: WorkspaceMode
) -> None:
    (tmp_path / "project").mkdir()
    chosen = Chosen(tmp_path / "project", mode, "because", Policy.BOXED, False)
    whole = await play(on(cluster, Failing()), model, wanted(tmp_path, workspace=chosen))
    (placed,) = [event for event in events_of(cluster, whole.session_id) if isinstance(event, SessionPlaced)]
    assert placed.host == HOST
    cut_in_first_call(Path(whole.transcript))

    node = Failing()
    runner = await go_on(on(cluster, node), model, whole.session_id)
    assert (await runner.run(asyncio.Event())).status == "completed"

    (asked,) = node.wanted
    is_bound = mode is WorkspaceMode.BIND
    assert asked.suits(NodeLife(node="n1", incarnation="n1-2", places=1, lanes=1, host=HOST))
    assert asked.suits(NodeLife(node="beside", incarnation="x", places=1, lanes=1, host=HOST))
    assert asked.suits(NodeLife(node="n2", incarnation="x", places=1, lanes=1, host=OTHER)) == (not is_bound)


async def test_no_place_is_taken_for_a_session_that_a_later_owner_has_ended(
    cluster: Cluster, model: ModelClient, redis_client: redis.Redis, tmp_path: Path
) -> None:
    whole = await play(on(cluster, Failing()), model, wanted(tmp_path))
    transcript = Path(whole.transcript)
    cut_in_first_call(transcript)

    node = Failing()
    runner = await go_on(on(cluster, node), model, whole.session_id)
    # Another owner takes and ends it before this one begins, and Redis forgets all of it.
    segment_path(transcript.parent, whole.session_id, 99).touch()
    redis_client.flushall()
    result = await runner.run(asyncio.Event())
    assert (result.status, node.asked) == ("failed", 0), result
    assert "taken over" in result.stop_reason
    assert not redis_client.exists(keys.session(whole.session_id))


class TakenOver(Failing):
    """Another coordinator takes the session over while it waits for its place."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.store = cluster.store

    async def place(self, session: str, home: str | None = None, *more: Any, **named: Any) -> NodeLife:
        assert await self.store.open_session(session, 2, "the next one") == 2
        await self.store.seat_session(session, "its node")
        return await super().place(session, home, *more, **named)


async def test_who_has_lost_a_session_while_it_waited_for_a_place_does_not_say_where_its_box_is(
    cluster: Cluster, model: ModelClient, tmp_path: Path, redis_client: redis.Redis
) -> None:
    node = TakenOver(cluster)
    result = await play(on(cluster, node), model, wanted(tmp_path))
    assert ("taken over" in result.stop_reason, node.asked, node.finished) == (True, 0, []), result
    assert redis_client.hget(keys.session(result.session_id), "node") == b"its node"


async def test_a_session_brings_what_it_wrote_to_the_disk_beside_the_loop(
    cluster: Cluster, model: ModelClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, beside, fsync = threading.current_thread(), list[int](), os.fsync

    def seen(file: int) -> None:
        if threading.current_thread() is not loop:
            beside.append(file)
        fsync(file)

    monkeypatch.setattr(os, "fsync", seen)
    result = await play(on(cluster, Failing()), model, wanted(tmp_path))
    assert result.status == "completed"
    assert len(beside) >= result.steps


class Placeless(Table):
    """Finds that the session has no place, whenever calls are to run."""

    async def run(self, *arguments: Any) -> None:
        *_, cancelled, _, _, regain = arguments
        await regain(cancelled)
        await super().run(*arguments)


class Regaining(OneNode):
    """Notes who takes a place again, as whom."""

    def __init__(self) -> None:
        super().__init__()
        self.regained: list[tuple[str, str, str, int | None]] = []

    async def regain(
        self,
        session: str,
        node: NodeLife,
        wanted: PlaceWanted,
        stop: asyncio.Event,
        on_wait: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.regained.append((session, node.node, wanted.principal, wanted.most))
        on_wait("It stands in line.")


async def test_calls_of_a_session_or_a_served_box_take_a_place_again_that_was_given_back(
    cluster: Cluster, model: ModelClient, tmp_path: Path
) -> None:
    node = Regaining()
    idle = Cluster(**{**vars(cluster), "placement": node, "executor": Placeless()})
    result = await play(idle, model, wanted(tmp_path, principal="p", most_places=3))
    assert result.status == "completed"
    assert set(node.regained) == {(result.session_id, "n1", "p", 3)}
    assert any(isinstance(one, Notice) and "in line" in one.text for one in events_of(idle, result.session_id))

    node.regained.clear()
    box = ServedBox(wanted(tmp_path), cluster=idle, approver=Always())
    assert (await box.start("Bash", {"command": "true"}, asyncio.Event())).status == "success"
    assert node.regained == [(box.session_id, "n1", "local", None)]
    await box.close(why="done")
