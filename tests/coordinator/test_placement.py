"""Orders of a session's start and end whose messages are lost on their way; a real Redis, and no node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from coordinator.cluster.collect import BLOCK_MS, ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.placement import Placement
from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import Turns
from coordinator.cluster.watch import Watch
from tests.conftest import Until
from worker.app import create_app
from worker.contract import keys
from worker.contract.orders import BoxOrder, NodeLife, WorkspaceMode

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
