"""A chain whose node refused one link and had started the one behind it; a real Redis, and no node."""

import asyncio
from pathlib import Path

import pytest
import redis

from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.execute import Executor, Job
from coordinator.cluster.settle import MAX_ATTEMPTS, MustResend, Sent, Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from coordinator.errors import LostSession
from coordinator.session.partition import Travel
from coordinator.session.transcript import segment_path
from tests.orders import box_order, call_order
from worker.contract import keys
from worker.contract.orders import (
    CallKey,
    CallOrder,
    CallOutcome,
    Fate,
    NodeLife,
)

NODE = NodeLife(node="n", incarnation="now", places=1, lanes=4)


class FirstRefused(Settler):
    """Says of the first link that it did not run, and of every other that it did."""

    def __init__(self) -> None:
        pass

    def expect(self, order: CallOrder, timeout_s: float, *, run_id: str, startable: bool = True) -> Sent:
        return Sent(order, timeout_s, asyncio.get_running_loop().create_future(), run_id, 0.0)

    def now(self) -> float:
        return 0.0

    def forget(self, sent: Sent) -> None:
        pass

    async def settle(self, sent: Sent, cancelled: asyncio.Event) -> CallOutcome:
        if sent.order.key.index == 0:
            raise MustResend("the node was restarted")
        return CallOutcome(key=sent.order.key, fate=Fate.RAN, result={"status": "success", "text": "ran"})


class Nowhere(Dispatcher):
    """Sends nothing."""

    def __init__(self) -> None:
        pass

    async def send_chain(self, orders: object) -> bool:
        return True


def job(index: int, path: Path, attempt: int = MAX_ATTEMPTS) -> Job:
    key = CallKey(session="s", generation=1, step=1, index=index, attempt=attempt)
    box = box_order("s", path, workspace=str(path))
    order = call_order(key=key, box=box, node=NODE.node, incarnation=NODE.incarnation)
    return Job(order, 10.0)


async def test_a_link_that_was_started_is_not_told_as_not_run(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    client = connect(redis_url)
    store = Store(client)
    watch = Watch(store)
    watch.follow(NODE.node, NODE.incarnation)
    executor = Executor(store=store, dispatcher=Nowhere(), settler=FirstRefused(), watch=watch)
    jobs = [job(index, tmp_path) for index in range(3)]
    redis_client.set(keys.claim(str(jobs[1].order.key)), "a worker")
    outcomes: dict[int, Fate] = {}

    async def keep(outcome: CallOutcome) -> None:
        assert outcome.key.index not in outcomes
        outcomes[outcome.key.index] = outcome.fate

    await executor.run(Travel.CHAIN, jobs, NODE, asyncio.Event(), keep)
    await client.aclose()
    assert outcomes == {0: Fate.DID_NOT_RUN, 1: Fate.RAN, 2: Fate.DID_NOT_RUN}


async def test_no_call_is_sent_again_of_a_session_that_a_later_owner_has_ended(redis_url: str, tmp_path: Path) -> None:
    client = connect(redis_url)
    store = Store(client)
    watch = Watch(store)
    watch.follow(NODE.node, NODE.incarnation)
    executor = Executor(store=store, dispatcher=Nowhere(), settler=FirstRefused(), watch=watch)
    outcomes: list[Fate] = []

    async def keep(outcome: CallOutcome) -> None:
        outcomes.append(outcome.fate)

    # Redis knows nothing of the session: the volume says whether it is still this owner's.
    segment_path(tmp_path, "s", 1).touch()
    jobs = [job(0, tmp_path, MAX_ATTEMPTS - 1)]
    await executor.run(Travel.CHAIN, jobs, NODE, asyncio.Event(), keep)
    assert outcomes == [Fate.DID_NOT_RUN]
    assert await client.exists(keys.session("s"))

    await client.delete(keys.session("s"))
    segment_path(tmp_path, "s", 2).touch()
    with pytest.raises(LostSession):
        await executor.run(Travel.CHAIN, jobs, NODE, asyncio.Event(), keep)
    await client.aclose()
    assert outcomes == [Fate.DID_NOT_RUN]
