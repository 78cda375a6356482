"""Orders of a session's start and end whose messages are lost on their way; a real Redis, and no node."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from coordinator.cluster.collect import BLOCK_MS, ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.patience import CANCELLED_S
from coordinator.cluster.placement import LISTED_S, Placement
from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import Turns
from coordinator.cluster.watch import Watch
from coordinator.errors import NoBox
from tests.conftest import Until
from worker.app import create_app
from worker.contract import keys
from worker.contract.orders import CONTRACT_VERSION, BoxOrder, FinishOutcome, NodeLife, WorkspaceMode

NODE = NodeLife(node="n", incarnation="one", places=1, lanes=1, state="ready")


@pytest.fixture
async def placement(redis_url: str) -> AsyncIterator[Placement]:
    client, reading = connect(redis_url), connect(redis_url, blocking_s=BLOCK_MS / 1000)
    store, dispatcher = Store(client), Dispatcher(create_app(redis_url), "c")
    async with ReplyReader(reading, "c") as reader, Watch(store) as watch:
        watch.follow(NODE.node, NODE.incarnation)
        yield Placement(
            store=store, reader=reader, dispatcher=dispatcher, watch=watch, turns=Turns(client), resend_s=0.05
        )
    dispatcher.close()
    await client.aclose()
    await reading.aclose()


async def test_a_node_of_another_version_gets_no_session_and_is_named(
    placement: Placement, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.cluster.placement.NODE_WAIT_S", 0.3)
    other = NODE.model_copy(update={"v": CONTRACT_VERSION + 1})
    redis_client.sadd(keys.NODES, NODE.node)
    redis_client.set(keys.lease(NODE.node), NODE.incarnation)
    redis_client.set(keys.node(NODE.node), other.model_dump_json())
    words = f"No worker speaks version {CONTRACT_VERSION} .*n: {CONTRACT_VERSION + 1}.*Upgrade both to one release"

    with pytest.raises(NoBox, match=words):
        await placement.place("s")
    with pytest.raises(NoBox, match=words):
        await placement.place("s", home=NODE.node)
    with pytest.raises(NoBox, match=words):
        await placement.any_node(NODE.node)

    redis_client.set(keys.node(NODE.node), NODE.model_dump_json())
    await asyncio.sleep(LISTED_S)
    assert (await placement.any_node(NODE.node)).node == (await placement.place("s")).node == NODE.node


async def test_an_order_that_was_lost_is_sent_again(
    placement: Placement, redis_client: redis.Redis, tmp_path: Path, until: Until
) -> None:
    redis_client.set(keys.lease(NODE.node), NODE.incarnation)
    redis_client.set(keys.node(NODE.node), NODE.model_dump_json())
    box = BoxOrder(
        session="s",
        generation=1,
        session_dir=str(tmp_path),
        image="i",
        workspace=str(tmp_path),
        workspace_mode=WorkspaceMode.BIND,
    )
    asking = asyncio.create_task(placement.prepare(box, NODE))
    queue = keys.queue(NODE.node)
    try:
        for _ in range(2):
            await asyncio.to_thread(until, lambda: bool(redis_client.rpop(queue)), "the order is sent")
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_what_an_ended_session_has_is_given_back_late_unless_it_has_begun_anew(
    placement: Placement, redis_client: redis.Redis
) -> None:
    redis_client.sadd(keys.NODES, NODE.node)
    redis_client.set(keys.node(NODE.node), NODE.model_dump_json())
    generations = {"over": 1, "again": 2}
    for session, generation in generations.items():
        redis_client.hset(keys.session(session), "generation", generation)
    redis_client.zadd(keys.places(NODE.node), dict.fromkeys(generations, 2e9))
    for session in generations:
        await placement.give_up(session, generation=1)
    assert redis_client.zrange(keys.places(NODE.node), 0, -1) == [b"again"]
    assert [redis_client.exists(keys.session(session)) for session in generations] == [0, 1]


async def test_a_node_is_asked_for_no_more_boxes_at_once_than_it_has_threads_for(
    placement: Placement, redis_client: redis.Redis, tmp_path: Path, until: Until
) -> None:
    redis_client.set(keys.lease(NODE.node), NODE.incarnation)
    redis_client.set(keys.node(NODE.node), NODE.model_dump_json())
    queue, sent = keys.queue(NODE.node), set[str]()

    def box(session: str) -> BoxOrder:
        return BoxOrder(
            session=session,
            generation=1,
            session_dir=str(tmp_path),
            image="i",
            workspace=str(tmp_path),
            workspace_mode=WorkspaceMode.BIND,
        )

    def sessions_asked_for(count: int) -> bool:
        while message := redis_client.rpop(queue):
            assert isinstance(message, bytes)
            sent.add(json.loads(message)["headers"]["id"].split("/")[0])
        return len(sent) >= count

    beginning = [asyncio.create_task(placement.prepare(box(f"s{number}"), NODE)) for number in range(60)]
    ending = list[asyncio.Task[FinishOutcome]]()
    try:
        await asyncio.to_thread(until, lambda: sessions_asked_for(keys.ERRANDS), "boxes are asked for")
        # An order that came in turn is sent again and again meanwhile; none of the others is.
        await asyncio.sleep(1.0)
        assert sessions_asked_for(keys.ERRANDS)
        assert sent == {f"s{number}" for number in range(keys.ERRANDS)}
        ending += [asyncio.create_task(placement.finish(box(f"e{number}"), NODE, apply=False)) for number in range(3)]
        await asyncio.to_thread(
            until, lambda: sessions_asked_for(keys.ERRANDS + 3), "those that end do not wait behind them"
        )
        beginning[0].cancel()
        await asyncio.to_thread(until, lambda: sessions_asked_for(keys.ERRANDS + 4), "the next one has its turn")
        assert f"s{keys.ERRANDS}" in sent
    finally:
        for task in (*beginning, *ending):
            task.cancel()
        await asyncio.gather(*beginning, *ending, return_exceptions=True)
    assert redis_client.keys(keys.errands("*", "*")) == [], "nothing is left of them"


async def test_a_look_at_progress_that_goes_on_when_it_is_ended_holds_up_nobody(
    placement: Placement, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client.set(keys.lease(NODE.node), NODE.incarnation)
    redis_client.set(keys.node(NODE.node), NODE.model_dump_json())
    looks = asyncio.Event()

    async def progress(store: Store, session: str) -> None:
        swallows = not looks.is_set()
        looks.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            # As the Redis client does now and then, see `coordinator.ending`.
            if not swallows:
                raise

    monkeypatch.setattr(Store, "progress", progress)
    monkeypatch.setattr("coordinator.cluster.placement.PROGRESS_S", 0.01)
    box = BoxOrder(
        session="s",
        generation=1,
        session_dir=str(tmp_path),
        image="i",
        workspace=str(tmp_path),
        workspace_mode=WorkspaceMode.BIND,
    )
    asking = asyncio.create_task(placement.prepare(box, NODE))
    await asyncio.wait_for(looks.wait(), 60)
    asking.cancel()
    ended, _ = await asyncio.wait({asking}, timeout=10)

    assert ended == {asking}


@pytest.mark.parametrize(("away_s", "is_waited_for"), [(keys.OUTAGE_S, True), (CANCELLED_S, False)])
async def test_the_end_of_a_session_waits_for_a_node_that_ends_unless_it_was_cancelled(
    placement: Placement,
    redis_client: redis.Redis,
    tmp_path: Path,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    away_s: float,
    is_waited_for: bool,
) -> None:
    monkeypatch.setattr("coordinator.cluster.placement.FINISH_S", 1.0)
    monkeypatch.setattr("coordinator.cluster.watch.LEFT_S", 0.3)
    ending, watch = NODE.model_copy(update={"state": "draining"}), placement._watch
    redis_client.set(keys.lease(NODE.node), NODE.incarnation)
    redis_client.set(keys.node(NODE.node), ending.model_dump_json())
    await asyncio.to_thread(until, lambda: watch.health(NODE.node).is_ending, "it is known to end")
    box = BoxOrder(
        session="s",
        generation=1,
        session_dir=str(tmp_path),
        image="i",
        workspace=str(tmp_path),
        workspace_mode=WorkspaceMode.BIND,
    )
    finishing = asyncio.create_task(placement.finish(box, NODE, apply=False, away_s=away_s))
    await asyncio.wait({finishing}, timeout=3.0)
    assert finishing.done() is not is_waited_for
    redis_client.delete(keys.lease(NODE.node), keys.node(NODE.node))
    outcome = await asyncio.wait_for(finishing, 60)

    assert outcome.error is not None
    assert ("has been gone" if is_waited_for else "nothing came within 1 s") in outcome.error
