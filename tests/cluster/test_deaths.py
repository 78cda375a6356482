"""What dies in the middle of a call, and what the model and the workspace see of it."""

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
import redis

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.step_events import ModelReplied
from tests.cluster.machines import kept_up
from worker.contract import keys

pytestmark = pytest.mark.docker


async def once_there(path: Path, then: Callable[[], object]) -> None:
    """Do something as soon as a file is there."""
    deadline = asyncio.get_running_loop().time() + 30
    while not await asyncio.to_thread(path.exists):
        assert asyncio.get_running_loop().time() < deadline, f"{path} never came"
        await asyncio.sleep(0.02)
    then()


def contents(played: Any) -> list[dict[str, Any]]:
    """The answers of the last request, decoded."""
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def running_box(node: str) -> Any:
    """The one container of the node."""
    client = docker.from_env()
    try:
        (container,) = client.containers.list(filters={"label": f"sandhog.node={node}"})
        return container
    finally:
        client.close()


async def test_a_killed_workers_command_runs_once_and_its_answer_arrives(stage: Any, embedded: Embedded) -> None:
    turn = Turn(
        calls=(
            ScriptedCall("Bash", {"command": "touch begun; sleep 2; echo x >> log; echo said"}),
            ScriptedCall("Bash", {"command": "echo y >> log; cat log"}),
        )
    )
    worker = embedded.worker_pid
    async with kept_up(embedded):
        kill = asyncio.create_task(once_there(stage.project / "begun", lambda: os.kill(worker, signal.SIGKILL)))
        played = await stage.play([turn, Turn("done")])
        await kill

    assert embedded.worker_pid != worker
    assert played.result.status == "completed"
    first, second = contents(played)
    assert first["status"] == "success", first
    assert first["text"].strip() == "said"
    assert second["text"].split() == ["x", "y"]
    assert (stage.project / "log").read_text() == "x\ny\n"


async def test_a_killed_box_is_told_and_the_next_call_gets_a_fresh_one(stage: Any, embedded: Embedded) -> None:
    long = Turn(calls=(ScriptedCall("Bash", {"command": "cd /tmp; touch /workspace/begun; sleep 60"}),))
    after = Turn(calls=(ScriptedCall("Bash", {"command": "pwd; ls"}),))
    kill = asyncio.create_task(once_there(stage.project / "begun", lambda: running_box(embedded.node).kill()))
    played = await stage.play([long, after, Turn("done")])
    await kill

    first, second = contents(played)
    assert first["error"]["code"] == "BOX_LOST"
    assert "killed" in first["error"]["message"]
    assert second["status"] == "success"
    assert "/workspace" in second["text"]
    assert "a.txt" in second["text"]
    assert "replaced by a fresh one" in second["text"], "the model is told what it lost"


async def test_a_link_of_a_chain_that_is_delivered_twice_runs_once(stage: Any, embedded: Embedded) -> None:
    turn = Turn(calls=tuple(ScriptedCall("Bash", {"command": f"sleep 0.4; echo {n} >> log"}) for n in "abc"))
    again: list[str] = []
    client, ready = redis.Redis.from_url(embedded.redis_url), threading.Event()
    queue = keys.queue(embedded.node)

    def push_again() -> None:
        """Deliver the first link a second time, as soon as its first delivery is seen."""
        with client.monitor() as monitor:  # type: ignore[no-untyped-call]
            ready.set()
            for command in monitor.listen():
                words = command["command"]
                if words.startswith(f"LPUSH {queue} ") and not again:
                    message = words.removeprefix(f"LPUSH {queue} ")
                    if json.loads(message)["headers"]["task"] == "sandhog.call":
                        again.append(message)
                        with redis.Redis.from_url(embedded.redis_url) as pushing:
                            pushing.lpush(queue, message)
                            pushing.lpush(queue, message)
                if words.startswith("ECHO sandhog-test-end"):
                    return

    thread = threading.Thread(target=push_again)
    thread.start()
    ready.wait()
    played = await stage.play(
        [turn, Turn(calls=(ScriptedCall("Bash", {"command": "sleep 0.5; cat log"}),)), Turn("ok")]
    )
    client.echo("sandhog-test-end")
    thread.join(60)
    client.close()

    assert again, "the message was seen and pushed again"
    assert [content["status"] for content in contents(played)] == ["success"] * 4
    assert (stage.project / "log").read_text() == "a\nb\nc\n"


async def test_a_call_whose_node_stood_still_is_sent_again_and_runs_once(stage: Any, embedded: Embedded) -> None:
    """The first message lies unread in the stopped node; it is fenced, and the model never hears of it."""
    worker = embedded.worker_pid

    def stand_still(event: object) -> None:
        if isinstance(event, ModelReplied) and event.step == 2:
            os.kill(worker, signal.SIGSTOP)
            threading.Timer(4.0, lambda: os.kill(worker, signal.SIGCONT)).start()

    warm = Turn(calls=(ScriptedCall("Bash", {"command": "true"}),))
    turn = Turn(calls=(ScriptedCall("Bash", {"command": "echo x >> log; cat log"}),))
    played = await stage.play([warm, turn, Turn("done")], sinks=(stand_still,))

    last = contents(played)[-1]
    assert last["status"] == "success", last
    assert last["text"].strip() == "x"
    assert (stage.project / "log").read_text() == "x\n"
    (finished,) = [one for one in played.events if isinstance(one, CallFinished) and one.step == 2]
    assert finished.attempt == 2, "the first attempt was fenced"


@pytest.mark.parametrize("away_s", [6.0, pytest.param(20.0, marks=pytest.mark.long)])
async def test_redis_that_stands_still_for_a_while_loses_and_doubles_nothing(
    stage: Any, embedded: Embedded, away_s: float
) -> None:
    turn = Turn(calls=(ScriptedCall("Bash", {"command": "touch begun; sleep 1; echo x >> log; cat log"}),))
    after = Turn(calls=(ScriptedCall("Bash", {"command": "echo y >> log; cat log"}),))
    pid = embedded.redis_pid

    def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(away_s, lambda: os.kill(pid, signal.SIGCONT)).start()

    stop = asyncio.create_task(once_there(stage.project / "begun", pause))
    played = await stage.play([turn, after, Turn("done")])
    await stop

    assert [content["status"] for content in contents(played)] == ["success", "success"]
    assert (stage.project / "log").read_text() == "x\ny\n"


async def test_what_proves_that_a_call_has_run_outlasts_a_disk_that_does_not_take_its_answer(
    stage: Any, embedded: Embedded
) -> None:
    """Whoever goes on with the session learns from its claim alone that the call has run."""

    def fill_disk(event: object) -> None:
        if isinstance(event, CallStarted):
            for fd in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = fd.readlink()
                    if target.suffix == ".jsonl" and target.is_relative_to(embedded.state_dir):
                        full = os.open("/dev/full", os.O_WRONLY)
                        os.dup2(full, int(fd.name))
                        os.close(full)

    turn = Turn(calls=(ScriptedCall("Bash", {"command": "echo ran >> log"}),))
    played = await stage.play([turn, Turn("done")], sinks=(fill_disk,))

    assert played.result.status == "failed"
    assert played.result.stop_reason.startswith("storage")
    assert (stage.project / "log").read_text() == "ran\n"
    with redis.Redis.from_url(embedded.redis_url) as client:
        assert client.exists(keys.claim(f"{played.result.session_id}:1:1:0:1"))
