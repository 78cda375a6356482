"""A node and a Redis that no command owns: what a session makes of their outages and ends."""

import asyncio
import json
import os
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallStarted
from coordinator.session.step_events import ModelReplied
from coordinator.session.transcript import read_transcript
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Stage, leftover_containers
from tests.cluster.machines import Node, Server
from worker.app import create_app
from worker.contract import keys
from worker.contract.orders import NodeLife

pytestmark = pytest.mark.docker

Until = Callable[..., None]


@pytest.fixture
def node(state_dir: Path, server: Server, until: Until, docker_engine_or_skip: None) -> Iterator[Node]:
    """A node that has its lease; nothing of it may be left."""
    node = Node(f"t-{uuid.uuid4().hex[:8]}", state_dir, server.url)
    node.start()
    with redis.Redis.from_url(server.url) as client:
        until(lambda: bool(client.exists(keys.lease(node.name))), "the node has its lease", 100)
    yield node
    if node.process.poll() is None:
        node.process.terminate()
    assert node.process.wait(100) == 0, node.log()
    assert not leftover_containers(node.name)


@pytest.fixture
async def stage(node: Node, server: Server, state_dir: Path, project: Path) -> AsyncIterator[Stage]:
    async with open_cluster(server.url, state_dir) as cluster:
        yield Stage(cluster, project)


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def when_replied(step: int, act: Callable[[], object]) -> Callable[[object], None]:
    """A sink that acts once the model's reply of a step is there, before its calls are sent."""

    def sink(event: object) -> None:
        if isinstance(event, ModelReplied) and event.step == step:
            act()

    return sink


def ours(server: Server) -> set[str]:
    """What lies in Redis but the node's own keys and Celery's bindings."""
    with redis.Redis.from_url(server.url) as client:
        names = {name.decode() for name in client.scan_iter()}
    return {name for name in names if not name.startswith(("_kombu", "sandhog:node", "sandhog:lease"))}


async def test_a_session_leaves_nothing_in_redis(stage: Any, server: Server) -> None:
    turn = Turn(calls=(ScriptedCall("Read", {"path": "a.txt"}), ScriptedCall("Bash", {"command": "true"})))
    await stage.play([turn, Turn("done")])
    left = ours(server)
    assert not [name for name in left if "claim" in name or "grant" in name or "session" in name], left
    assert not [name for name in left if "lanes" in name or "places" in name], left


async def test_a_redis_that_is_killed_between_calls_and_comes_back_is_waited_for(stage: Any, server: Server) -> None:
    back = asyncio.get_running_loop()

    def away() -> None:
        server.kill()
        back.call_later(3.0, server.start)

    turns = [bash("echo x >> log"), bash("echo y >> log; cat log"), Turn("done")]
    played = await stage.play(turns, sinks=(when_replied(2, away),))

    assert played.result.status == "completed", played.result
    assert contents(played)[1]["status"] == "success", contents(played)[1]
    assert (stage.project / "log").read_text() == "x\ny\n"


async def test_a_redis_that_was_emptied_costs_no_call(stage: Any, server: Server) -> None:
    def empty() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()

    def sink(event: object) -> None:
        # Behind the step's beginning: the node finds no session any more.
        if isinstance(event, CallStarted) and event.step == 2:
            empty()

    played = await stage.play([bash("echo x >> log"), bash("echo y >> log; cat log"), Turn("done")], sinks=(sink,))

    assert contents(played)[1]["status"] == "success", contents(played)[1]
    assert (stage.project / "log").read_text() == "x\ny\n"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGSTOP, marks=pytest.mark.long), signal.SIGKILL])
async def test_a_cancel_while_redis_is_away_ends_the_session_soon(stage: Any, server: Server, how: int) -> None:
    cancelled = asyncio.Event()

    async def stop_both() -> None:
        await once_begun(stage)
        server.signal(how)
        cancelled.set()

    stopping = asyncio.create_task(stop_both())
    try:
        played = await asyncio.wait_for(stage.play([bash("touch begun; sleep 25")], cancelled=cancelled), 100)
    finally:
        if how == signal.SIGKILL:
            server.processes[-1].wait()
            server.start()
        server.signal(signal.SIGCONT)
        await stopping

    assert played.result.status == "cancelled"
    reading = read_transcript(Path(played.result.transcript))
    kinds = [entry.fields["type"] for entry in reading.entries]
    assert kinds.count("call_finished") == kinds.count("call_started") == 1
    assert kinds[-1] == "session_ended"


async def test_a_node_that_is_told_to_end_gives_its_running_calls_answer(
    stage: Any, server: Server, node: Node, until: Until
) -> None:
    states: list[str] = []

    async def watch() -> None:
        while not (stage.project / "begun").exists():
            await asyncio.sleep(0.02)
        node.process.terminate()
        with redis.Redis.from_url(server.url) as client:
            while (life := client.get(keys.node(node.name))) is not None:
                assert isinstance(life, bytes)
                states.append(NodeLife.model_validate_json(life).state)
                await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    played = await stage.play([bash("touch begun; sleep 1.5; echo said"), Turn("done")])
    await watching

    assert contents(played)[0]["text"].strip() == "said", contents(played)
    assert "draining" in states
    assert node.process.wait(60) == 0, node.log()
    assert not leftover_containers(node.name)
    assert "Traceback" not in node.log()


async def test_a_node_that_ends_is_there_until_its_boxes_are_gone(stage: Any, server: Server, node: Node) -> None:
    """Its sessions may have boxes elsewhere as soon as it is not."""
    has_left = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        if messages[-1]["role"] == "tool":
            has_left.wait(100)
            return Turn("done")
        return bash("touch begun")

    playing = asyncio.create_task(stage.play(script))
    await once_begun(stage)
    node.process.terminate()
    with redis.Redis.from_url(server.url) as client:
        while client.exists(keys.node(node.name)):
            await asyncio.sleep(0.002)
    left = leftover_containers(node.name)
    has_left.set()
    assert (await playing).result.status == "completed"
    assert left == []


async def test_a_message_that_comes_back_to_a_later_life_of_its_node_runs_nothing(
    stage: Any, server: Server, node: Node
) -> None:
    """As after a Redis that lost its last second: a node's next life gets a message whose call ran in the last one."""
    queue = keys.queue(node.name)
    again: list[bytes] = []

    def keep() -> None:
        os.kill(node.process.pid, signal.SIGSTOP)

    async def kill_and_deliver_again() -> None:
        with redis.Redis.from_url(server.url) as client:
            # The node stands still, so its queue shows the message.
            while not again:
                again.extend(one for one in client.lrange(queue, 0, -1) if b"sandhog.call" in one)
                await asyncio.sleep(0.01)
            os.kill(node.process.pid, signal.SIGCONT)
            while not (stage.project / "begun").exists():
                await asyncio.sleep(0.01)
            node.process.kill()
            node.process.wait()
            client.lpush(queue, again[0])
            node.start()

    killing = asyncio.create_task(kill_and_deliver_again())
    turns = [bash("true"), bash("touch begun; sleep 4; echo x >> log; echo said"), bash("cat log"), Turn("done")]
    played = await stage.play(turns, sinks=(when_replied(2, keep),))
    await killing

    assert (stage.project / "log").read_text() == "x\n"
    assert contents(played)[1]["text"].strip() == "said", contents(played)[1]


async def restarted(node: Node, server: Server) -> None:
    """Kill the node and start it again; come back once the new life takes what it is sent."""

    def hears() -> bool:
        with create_app(server.url) as app:
            return bool(app.control.ping(destination=[keys.hostname(node.name)], timeout=1.0))

    node.process.kill()
    node.process.wait()
    node.start()
    while not await asyncio.to_thread(hears):
        assert node.process.poll() is None, node.log()


async def once_begun(stage: Any) -> None:
    while not (stage.project / "begun").exists():
        await asyncio.sleep(0.02)


async def test_a_node_that_is_restarted_twice_in_one_call_gives_its_answer(
    stage: Any, server: Server, node: Node
) -> None:
    async def restart_twice() -> None:
        await once_begun(stage)
        await restarted(node, server)
        await restarted(node, server)
        (stage.project / "go").touch()

    restarting = asyncio.create_task(restart_twice())
    command = "touch begun; until [ -e go ]; do sleep 0.1; done; echo x >> log; echo said"
    played = await stage.play([bash(command), bash("cat log"), Turn("done")])
    await restarting

    assert [content["text"].strip() for content in contents(played)] == ["said", "x"], contents(played)


async def test_a_cancel_while_a_restarted_node_is_asked_ends_the_command(
    stage: Any, server: Server, node: Node
) -> None:
    cancelled = asyncio.Event()

    async def restart_then_cancel() -> None:
        await once_begun(stage)
        await restarted(node, server)
        cancelled.set()

    cancelling = asyncio.create_task(restart_then_cancel())
    command = ScriptedCall("Bash", {"command": "echo so far; touch begun; sleep 500", "timeout_ms": 600_000})
    played = await asyncio.wait_for(stage.play([Turn(calls=(command,))], cancelled=cancelled), 200)
    await cancelling

    assert played.result.status == "cancelled"
    (finished,) = [one for one in played.events if getattr(one, "type", "") == "call_finished"]
    assert "so far" in finished.answer


@pytest.mark.parametrize("at", ["prepare", "finish"])
async def test_a_node_that_dies_while_a_box_begins_or_ends_is_asked_again(stage: Any, node: Node, at: str) -> None:
    async def restart() -> None:
        while not leftover_containers(node.name):
            await asyncio.sleep(0.01)
        node.process.kill()
        node.process.wait()
        node.start()

    def restart_now() -> None:
        node.process.kill()
        node.process.wait()
        node.start()

    restarting = asyncio.create_task(restart()) if at == "prepare" else None
    sinks = () if at == "prepare" else (when_replied(2, restart_now),)
    turns = [bash("echo more >> a.txt"), Turn("done")]
    played = await asyncio.wait_for(stage.play(turns, copy=True, sinks=sinks), 150)
    if restarting is not None:
        await restarting

    assert played.result.status == "completed", played.result
    assert contents(played)[0]["status"] == "success", contents(played)
    assert "+more" in (played.result.patch or ""), played.result


async def test_a_session_that_another_coordinator_took_ends_without_touching_its_box(
    stage: Any, server: Server, node: Node
) -> None:
    def take_over() -> None:
        with redis.Redis.from_url(server.url) as client:
            (name,) = [one for one in client.keys(keys.session("*"))]
            client.hset(name, "generation", 2)

    played = await stage.play([bash("true"), bash("touch never")], sinks=(when_replied(2, take_over),))

    assert played.result.status == "failed"
    assert "another coordinator" in played.result.stop_reason
    assert not (stage.project / "never").exists()
    assert leftover_containers(node.name), "the box is the other one's"
    with redis.Redis.from_url(server.url) as client:
        assert client.keys(keys.session("*")), "and so is the session"


async def test_a_session_abandoned_before_it_had_a_place_gives_back_what_it_took(
    stage: Any, server: Server, node: Node
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.zadd(keys.places(node.name), {f"other-{n}": 9e9 for n in range(8)})
        cancelled = asyncio.Event()
        asyncio.get_running_loop().call_later(0.5, cancelled.set)
        played = await stage.play([bash("true")], cancelled=cancelled)
        assert played.result.status == "cancelled"
        assert client.zcard(keys.places(node.name)) == 8
        assert not client.keys(keys.session("*"))


async def test_a_description_of_a_node_that_cannot_be_read_harms_nobody(stage: Any, server: Server) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.sadd(keys.NODES, "a-of-tomorrow")
        client.set(keys.node("a-of-tomorrow"), '{"v":9,"state":"asleep"}')
    played = await stage.play([bash("echo hi"), Turn("done")])
    assert played.result.status == "completed", played.result
