"""What one owner of a session leaves to the next: its end, its work, its ownership."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient
from coordinator.endpoint.scripted import ScriptedEndpoint
from coordinator.errors import NoSource
from coordinator.session.approvals import Always
from coordinator.session.call_events import CallStarted
from coordinator.session.events import Event
from coordinator.session.loop import Ending
from coordinator.session.model_table import ModelTable
from coordinator.session.reading import read_session
from coordinator.session.rebuild import rebuild
from coordinator.session.resume import continuing, find
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TAKEOVER, SessionEnded, TurnEnded
from coordinator.session.takeover import Orphan, adopt, strays
from coordinator.session.transcript import segment_path
from tests.coordinator.left_open import content_of, cut_before
from tests.coordinator.resuming import OneNode, in_memory_cluster
from tests.coordinator.ten_steps import (
    cluster,
    endpoint,
    events_of,
    model,
    play,
    wanted,
)
from worker.contract import keys
from worker.contract.orders import (
    BoxOrder,
    FinishOutcome,
    NodeLife,
    PrepareOutcome,
)

__all__ = ["cluster", "endpoint", "model"]


async def test_what_redis_does_not_know_any_more_the_volume_does(
    cluster: Cluster, model: ModelClient, redis_url: str, tmp_path: Path, redis_client: redis.Redis
) -> None:
    begun = asyncio.Event()

    async def never(turn: TurnEnded) -> str | None:
        begun.set()
        await asyncio.Event().wait()
        return None

    request = wanted(tmp_path, is_adoptable=True)
    async with in_memory_cluster(redis_url, cluster.state_dir, "the first") as first:
        runner = SessionRunner(request, cluster=first, model=model, approver=Always(), sinks=[], next_message=never)
        running = asyncio.create_task(runner.run(asyncio.Event()))
        await asyncio.wait_for(begun.wait(), 60)
        assert strays(cluster.state_dir) == {runner.session_id: False}, "it is being written"
        runner.abandon(Ending("failed", "the server ends", is_lost=True), finish_s=0.0)
        await running
    assert not any(isinstance(event, SessionEnded) for event in events_of(cluster, runner.session_id))
    assert strays(cluster.state_dir) == {runner.session_id: True}
    redis_client.flushall()
    adopted = await adopt(Orphan(runner.session_id, ""), cluster)
    assert adopted is not None
    assert adopted.generation == 2
    result = await continuing(
        adopted.session_id,
        adopted.saved.to_request(ModelTable()),
        generation=adopted.generation,
        cluster=cluster,
        model=model,
        approver=Always(),
        sinks=[],
        by=TAKEOVER,
    ).run(asyncio.Event())
    assert (result.status, result.text) == ("completed", "All done.")
    assert strays(cluster.state_dir) == {}
    assert await adopt(Orphan(runner.session_id, ""), cluster) is None, "it has ended"


async def test_an_owner_that_was_not_told_yet_ends_nothing_of_the_next_one(
    cluster: Cluster, model: ModelClient, tmp_path: Path, redis_client: redis.Redis
) -> None:
    """It stood still, or was cut off, while another one took the session over, and has its last reply only now."""

    async def take_over(turn: TurnEnded) -> str | None:
        session = runner.session_id
        assert await cluster.store.open_session(session, 2, "the next one") == 2
        segment_path(runner.session_dir, session, 2).touch()
        return None

    runner = SessionRunner(
        wanted(tmp_path), cluster=cluster, model=model, approver=Always(), sinks=[], next_message=take_over
    )
    result = await runner.run(asyncio.Event())

    assert (result.status, "taken over" in result.stop_reason) == ("failed", True), result
    node = cluster.placement
    assert isinstance(node, OneNode)
    assert node.finished == []
    assert b'"session_ended"' not in content_of(result)
    assert redis_client.hget(keys.session(runner.session_id), "owner") == b"the next one"


class Slow(OneNode):
    """Is at it for ever when it is to end a session."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def finish(self, *more: Any, **named: Any) -> FinishOutcome:
        self.is_asked.set()
        return await asyncio.Future()


async def test_a_session_whose_work_is_collected_as_its_server_ends_is_left_to_the_next_one(
    cluster: Cluster, model: ModelClient, tmp_path: Path
) -> None:
    node = Slow()
    on_slow = Cluster(**{**vars(cluster), "placement": node})
    request = wanted(tmp_path, is_adoptable=True)
    runner = SessionRunner(request, cluster=on_slow, model=model, approver=Always(), sinks=[])
    running = asyncio.create_task(runner.run(asyncio.Event()))
    await asyncio.wait_for(node.is_asked.wait(), 60)
    runner.abandon(Ending("failed", "the server ends", is_lost=True), finish_s=0.0)
    await running
    assert not any(isinstance(event, SessionEnded) for event in events_of(cluster, runner.session_id))
    assert await cluster.store.owned_by("me") == [runner.session_id], "whoever comes finds it"


class CopyGone(OneNode):
    """Finds that the session's work was collected already."""

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: Any, **named: Any) -> PrepareOutcome:
        assert not (Path(box.session_dir) / "work").exists()
        raise NoSource("its private copy is gone, and its patch is kept")


async def test_a_session_whose_owner_only_did_not_say_that_it_ended_is_completed(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    whole = await play(cluster, model, wanted(tmp_path))
    cut_before(Path(whole.transcript), "session_ended")
    asked, node = len(endpoint.requests), CopyGone()
    result = await continuing(
        whole.session_id,
        find(cluster.state_dir, whole.session_id).saved.to_request(ModelTable()),
        generation=2,
        cluster=Cluster(**{**vars(cluster), "placement": node}),
        model=model,
        approver=Always(),
        sinks=[],
        by=TAKEOVER,
    ).run(asyncio.Event())
    assert (result.status, result.text) == ("completed", "All done.")
    assert len(node.finished) == 1, "the node says what the work became"
    assert len(endpoint.requests) == asked


async def test_a_cancelled_session_whose_owner_did_not_say_that_it_ended_is_not_gone_on_with(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    cancelled = asyncio.Event()

    def cancel(event: Event) -> None:
        if isinstance(event, CallStarted):
            cancelled.set()

    runner = SessionRunner(wanted(tmp_path), cluster=cluster, model=model, approver=Always(), sinks=[cancel])
    first = await runner.run(cancelled)
    cut_before(Path(first.transcript), "session_ended")
    # Collected and removed, as where its box had never stood.
    shutil.rmtree(Path(first.transcript).parent / "work")
    asked, gone = len(endpoint.requests), Cluster(**{**vars(cluster), "placement": CopyGone()})
    saved = find(cluster.state_dir, first.session_id).saved

    def go_on(generation: int, by: str, where: Cluster) -> SessionRunner:
        request = saved.to_request(ModelTable())
        given: dict[str, Any] = {"cluster": where, "model": model, "approver": Always(), "sinks": [], "by": by}
        return continuing(first.session_id, request, generation=generation, **given)

    result = await go_on(2, TAKEOVER, gone).run(asyncio.Event())
    assert (first.status, result.status, result.stop_reason) == ("cancelled", "cancelled", "cancelled")
    assert len(endpoint.requests) == asked
    # One more owner that comes to nothing leaves it as it is; a person may go on with it.
    cut_before(Path(result.transcript), "session_ended")
    rebuilt = rebuild(read_session(Path(result.transcript).parent).entries)
    assert rebuilt.ending is not None
    (Path(result.transcript).parent / "work").mkdir()
    result = await go_on(3, "sandhog resume", cluster).run(asyncio.Event())
    assert (result.status, len(endpoint.requests) > asked) == ("completed", True)
