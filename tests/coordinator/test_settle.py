"""What calls come to whose node does not hear of a cancel at once, or whose claims are lost; a real Redis, no node."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import redis
from pydantic import JsonValue

from coordinator.cluster import settle
from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.settle import MustResend, Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from tests.orders import box_order, call_order
from worker.contract import keys
from worker.contract.orders import CallKey, CallOrder, CallOutcome, Fate, NodeLife
from worker.contract.replies import Reply

PRINTED = "so far"


class Node(Dispatcher):
    """A node that hears the second of two cancels, and answers what it is asked once it has heard one."""

    def __init__(self, reader: ReplyReader, error_code: str | None = None) -> None:
        self._reader = reader
        self._error: dict[str, JsonValue] = {}
        if error_code is not None:
            self._error = {"error_code": error_code, "error_message": "It ended."}
        self._asked: list[str] = []
        self.cancels = 0

    async def cancel(self, node: str, call_keys: Sequence[CallKey]) -> bool:
        self.cancels += 1
        if self.cancels == 2:
            for task_id in self._asked or [str(key) for key in call_keys]:
                self._answer(call_keys[0], task_id)
        return True

    async def send_join(self, order: CallOrder, task_id: str) -> bool:
        self._asked.append(task_id)
        return True

    def _answer(self, key: CallKey, task_id: str) -> None:
        outcome = CallOutcome(key=key, fate=Fate.RAN, result={"status": "error", "text": PRINTED, **self._error})
        self._reader.expect(task_id).set_result(Reply(task_id, True, outcome.to_text(), ""))


class KnowingNode(Node):
    """A node that has the call's outcome, and says so when it is asked."""

    async def send_join(self, order: CallOrder, task_id: str) -> bool:
        self._answer(order.key, task_id)
        return True


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    client = connect(redis_url)
    yield Store(client)
    await client.aclose()


@pytest.mark.parametrize("life", ["the call's", "a later one"])
async def test_a_cancel_is_said_until_the_node_hears_it_and_its_present_life_is_asked_what_was_printed(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, life: str
) -> None:
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="the call's")
    redis_client.set(keys.claim(str(key)), "a worker")
    watch = Watch(store)
    watch.follow("n", life)
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    node = Node(reader)
    settler = Settler(store=store, reader=reader, dispatcher=node, watch=watch)
    cancelled = asyncio.Event()
    cancelled.set()
    outcome = await settler.settle(settler.expect(order, 10.0, run_id="r"), cancelled)
    await client.aclose()

    assert node.cancels == 2
    assert outcome.result is not None
    assert outcome.result["text"] == PRINTED


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_call_that_a_person_cancels_ends_alone_and_no_other_one_of_its_session_is_kept_from_starting(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, has_begun: bool
) -> None:
    generation = await store.open_session("s")
    key = CallKey(session="s", generation=generation, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="the call's")
    if has_begun:
        redis_client.set(keys.claim(str(key)), "a worker")
    watch = Watch(store)
    watch.follow("n", "the call's")
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    settler = Settler(store=store, reader=reader, dispatcher=Node(reader, "CANCELLED"), watch=watch)
    sent = settler.expect(order, 10.0, run_id="r")
    sent.stopped.set()
    outcome = await settler.settle(sent, asyncio.Event())
    await client.aclose()

    assert outcome.result is not None
    assert outcome.result["error_code"] == "CANCELLED"
    words = "A person cancelled this call. It ended." if has_begun else "A person cancelled this call before it ran."
    assert (outcome.result["error_message"], outcome.result["text"]) == (words, PRINTED if has_begun else "")
    assert redis_client.hget(keys.session("s"), "cancelled") is None
    assert (redis_client.get(keys.claim(str(key))) == b"FENCED") is not has_begun


class Back(Node):
    """Answers a question for a call at once."""

    async def send_join(self, order: CallOrder, task_id: str) -> bool:
        self._answer(order.key, task_id)
        return True


@pytest.mark.parametrize("is_emptied", [True, False])
async def test_a_node_that_an_emptied_redis_does_not_know_yet_is_asked_for_an_earlier_owners_call(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, is_emptied: bool
) -> None:
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n")
    redis_client.set(keys.claim(str(key)), "a worker")
    watch = Watch(store)
    await watch.poll()
    if is_emptied:
        watch._run_id = "an earlier life"
        await watch.poll()
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    settler = Settler(store=store, reader=reader, dispatcher=Back(reader), watch=watch)
    outcome = await settler.recover(
        order, 10.0, run_id="r", has_begun=True, cancelled=asyncio.Event(), stopped=asyncio.Event()
    )
    await client.aclose()

    assert outcome.fate is (Fate.RAN if is_emptied else Fate.UNKNOWN)


@pytest.mark.parametrize("has_begun", [True, False])
async def test_an_earlier_owners_call_that_a_person_cancels_is_ended_at_its_node_and_not_waited_for(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, has_begun: bool
) -> None:
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="the call's")
    redis_client.set(keys.node("n"), NodeLife(node="n", incarnation="the call's", places=1, lanes=1).model_dump_json())
    redis_client.set(keys.lease("n"), "the call's")
    if has_begun:
        redis_client.set(keys.claim(str(key)), "a worker")
    watch = Watch(store)
    await watch.poll()
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    node = Node(reader, "CANCELLED")
    settler = Settler(store=store, reader=reader, dispatcher=node, watch=watch)
    stopped = asyncio.Event()
    recovering = asyncio.create_task(
        settler.recover(
            order, 600.0, run_id=await store.run_id(), has_begun=True, cancelled=asyncio.Event(), stopped=stopped
        )
    )
    if has_begun:
        done, _ = await asyncio.wait({recovering}, timeout=0.5)
        assert not done, "it runs"
        assert node.cancels == 0
    stopped.set()
    async with asyncio.timeout(5):
        outcome = await recovering
    await client.aclose()

    assert outcome.result is not None
    assert (outcome.result["error_code"], outcome.result["text"]) == ("CANCELLED", PRINTED if has_begun else "")
    assert str(outcome.result["error_message"]).startswith("A person cancelled this call")
    # The node hears the second one.
    assert node.cancels == (2 if has_begun else 0)


async def test_a_running_call_whose_claim_went_with_all_else_in_redis_is_asked_for_and_not_sent_again(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "UNCLAIMED_S", 0.1)
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="one")
    redis_client.set(keys.claim(str(key)), "a worker")
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    async with Watch(store) as watch:
        watch.follow("n", "one")
        settler = Settler(store=store, reader=reader, dispatcher=KnowingNode(reader), watch=watch)
        sent = settler.expect(order, 10.0, run_id=await store.run_id())
        redis_client.flushall()
        outcome = await asyncio.wait_for(settler.settle(sent, asyncio.Event()), 60)
    await client.aclose()

    assert outcome.result is not None
    assert outcome.result["text"] == PRINTED


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_call_that_an_ending_node_did_not_read_any_more_waits_for_its_next_life_or_for_its_end(
    store: Store,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comes_back: bool,
) -> None:
    monkeypatch.setattr(settle, "UNCLAIMED_S", 0.1)
    monkeypatch.setattr(settle, "GRACE_S", 0.5)
    monkeypatch.setattr("coordinator.cluster.watch.LEFT_S", 0.5)
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="one")
    life = NodeLife(node="n", incarnation="one", places=1, lanes=1, state="draining")
    redis_client.set(keys.node("n"), life.model_dump_json())
    redis_client.set(keys.lease("n"), "one")
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    async with Watch(store) as watch:
        watch.follow("n", "one")
        while not watch.health("n").is_ending:
            await asyncio.sleep(0.02)
        settler = Settler(store=store, reader=reader, dispatcher=Node(reader), watch=watch)
        sent = settler.expect(order, 0.1, run_id=await store.run_id())
        settling = asyncio.create_task(settler.settle(sent, asyncio.Event()))
        # Longer than both the time for a claim and the call's own.
        await asyncio.wait({settling}, timeout=2.0)
        assert not settling.done(), settling.exception()
        if comes_back:
            redis_client.set(keys.node("n"), life.model_copy(update={"incarnation": "two"}).model_dump_json())
            redis_client.set(keys.lease("n"), "two")
        else:
            redis_client.delete(keys.node("n"), keys.lease("n"))
        with pytest.raises(MustResend, match="restarted" if comes_back else "gone|never reached"):
            await asyncio.wait_for(settling, 60)
    await client.aclose()

    assert redis_client.get(keys.claim(str(key))) == b"FENCED"


class Asked(Node):
    """A node that lives and says what a call came to only when it is asked for it."""

    def __init__(self, reader: ReplyReader) -> None:
        super().__init__(reader)
        self.joins = 0

    async def send_join(self, order: CallOrder, task_id: str) -> bool:
        self.joins += 1
        self._answer(order.key, task_id)
        return True


FAILED = Reply("t", False, None, "FAILURE: {}")
UNREADABLE = Reply("t", True, "no outcome", "")


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("reply", [FAILED, UNREADABLE], ids=["failed", "unreadable"])
async def test_what_the_queue_says_of_a_call_is_no_answer_and_its_node_is_asked(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, reply: Reply, has_begun: bool
) -> None:
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="one")
    if has_begun:
        redis_client.set(keys.claim(str(key)), "a worker")
    watch = Watch(store)
    watch.follow("n", "one")
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    node = Asked(reader)
    settler = Settler(store=store, reader=reader, dispatcher=node, watch=watch)
    sent = settler.expect(order, 10.0, run_id=await store.run_id())
    sent.future.set_result(reply)
    settling = asyncio.wait_for(settler.settle(sent, asyncio.Event()), 60)
    if has_begun:
        outcome = await settling
        assert outcome.result is not None
        assert (outcome.result["text"], node.joins) == (PRINTED, 1)
    else:
        with pytest.raises(MustResend, match="the queue reported"):
            await settling
        assert redis_client.get(keys.claim(str(key))) == b"FENCED"
    await client.aclose()


async def test_a_call_that_is_overdue_at_a_node_that_lives_is_asked_for(
    store: Store, redis_url: str, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is the coordinator's own: no reply comes, and nothing is wrong with node or claim."""
    monkeypatch.setattr(settle, "GRACE_S", 1.0)
    key = CallKey(session="s", generation=1, step=1, index=0, attempt=1)
    order = call_order(key=key, box=box_order("s", tmp_path), node="n", incarnation="one")
    life = NodeLife(node="n", incarnation="one", places=1, lanes=1)
    redis_client.set(keys.node("n"), life.model_dump_json())
    redis_client.set(keys.lease("n"), "one")
    redis_client.set(keys.claim(str(key)), "a worker")
    client = connect(redis_url)
    reader = ReplyReader(client, "c")
    node = Asked(reader)
    async with Watch(store) as watch:
        watch.follow("n", "one")
        settler = Settler(store=store, reader=reader, dispatcher=node, watch=watch)
        began = settler.now()
        sent = settler.expect(order, 1.0, run_id=await store.run_id())
        outcome = await asyncio.wait_for(settler.settle(sent, asyncio.Event()), 60)
        took_s = settler.now() - began
    await client.aclose()

    assert outcome.result is not None
    assert (outcome.result["text"], node.joins) == (PRINTED, 1)
    assert took_s > 2.0, "it has its own limit first, and the grace behind that"
