"""What an earlier owner of a session left running, or waiting for a yes, is given up or cancelled."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.outcomes import cancelled_outcome
from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Wish
from coordinator.endpoint.model import ModelClient
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.session.call_events import CallFinished
from coordinator.session.cancelling import calls_cancelled
from coordinator.session.exporting import ExportFormat, export
from coordinator.session.history import validate
from coordinator.session.reading import read_session
from tests.coordinator.left_open import AlwaysForTheSession, cut_behind
from tests.coordinator.resuming import OneNode, Table
from tests.coordinator.ten_steps import (
    bash,
    cluster,
    endpoint,
    events_of,
    go_on,
    model,
    play,
    replies,
    wanted,
)
from worker.contract import keys
from worker.contract.orders import (
    BoxOrder,
    CallOrder,
    CallOutcome,
    NodeLife,
    Policy,
    PrepareOutcome,
)

__all__ = ["cluster", "endpoint", "model"]


async def test_what_a_sub_agent_left_running_is_given_up(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    """The sub-agent's owner is killed while a call of the sub-agent runs."""

    def script(messages: list[dict[str, Any]]) -> Turn:
        is_child = "sub-agent" in messages[0]["content"]
        if replies(messages):
            return Turn("child done" if is_child else "All done.")
        task = ScriptedCall("Task", {"description": "look", "prompt": "look around", "profile": "general"})
        return Turn(calls=(bash("touch child"),) if is_child else (task,))

    endpoint.script = script
    result = await play(cluster, model, wanted(tmp_path))
    assert result.status == "completed", result
    session_dir = cluster.state_dir / "sessions" / result.session_id
    (child_dir,) = (session_dir / "children").iterdir()
    messages = json.loads(export(read_session(child_dir), ExportFormat.CHAT))["messages"]
    validate(messages)
    assert [one["content"] for one in messages if one["role"] != "tool"][-1] == "child done"

    cut_behind(session_dir, "child_started")
    cut_behind(child_dir, "call_started")
    (session_dir / "work").mkdir()
    table = Table()
    endpoint.script = lambda messages: Turn("goes on")
    runner = await go_on(Cluster(**{**vars(cluster), "executor": table}), model, result.session_id)
    again = await runner.run(asyncio.Event())
    assert (again.status, again.text) == ("completed", "goes on")
    assert [str(key) for key in table.given_up] == [f"{result.session_id}.1-1-0:1:1:0:{attempt}" for attempt in (1, 2)]
    answer = next(event for event in events_of(cluster, result.session_id) if isinstance(event, CallFinished))
    assert answer.error_code == "OUTCOME_UNKNOWN"


async def test_so_is_what_a_sub_agent_of_it_runs_and_the_lane_of_its_chain(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path, redis_client: redis.Redis
) -> None:
    def task(prompt: str) -> ScriptedCall:
        return ScriptedCall("Task", {"description": "look", "prompt": prompt, "profile": "general"})

    def script(messages: list[dict[str, Any]]) -> Turn:
        if replies(messages):
            return Turn("done")
        match messages[1]["content"]:
            case "mend it":
                return Turn(calls=(task("child"),))
            case "child":
                return Turn(calls=(task("grandchild"),))
            case _:
                return Turn(calls=(bash("touch first"), bash("touch second")))

    endpoint.script = script
    result = await play(cluster, model, wanted(tmp_path, task_depth=2))
    assert result.status == "completed", result
    session_dir = cluster.state_dir / "sessions" / result.session_id
    child_dir, grandchild_dir = sorted((session_dir / "children").iterdir(), key=lambda one: len(one.name))
    for directory in (session_dir, child_dir):
        cut_behind(directory, "child_started")
    # The first call of the chain is answered, and the second one runs: it holds its chain's lane under the first's key.
    cut_behind(grandchild_dir, "call_finished")
    (session_dir / "work").mkdir()
    first = f"{result.session_id}.1-1-0.1-1-0:1:1:0:1"
    redis_client.zadd(keys.lanes("n1"), {first: 2e9})
    table = Table()
    endpoint.script = lambda messages: Turn("goes on")
    runner = await go_on(Cluster(**{**vars(cluster), "executor": table}), model, result.session_id)
    assert (await runner.run(asyncio.Event())).text == "goes on"
    assert {f"{first[:-3]}1:{attempt}" for attempt in (1, 2)} <= {str(key) for key in table.given_up}
    assert redis_client.zcard(keys.lanes("n1")) == 0


class StillRunning(Table):
    """A node on which the first call runs until it is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def recover(self, order: CallOrder, timeout_s: float, **named: Any) -> CallOutcome:
        if order.key.index == 0:
            self.is_asked.set()
            await named["stopped"].wait()
            return cancelled_outcome(order.key, "A person cancelled this call.")
        return await super().recover(order, timeout_s, **named)


@pytest.mark.parametrize("name", ["1.0", "1"])
async def test_a_call_that_an_earlier_owner_left_running_is_cancelled_by_a_person(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path, name: str
) -> None:
    endpoint.script = lambda messages: (
        Turn("done") if replies(messages) else Turn(calls=(bash("sleep 1"), bash("touch second")))
    )
    result = await play(cluster, model, wanted(tmp_path))
    session_dir = cluster.state_dir / "sessions" / result.session_id
    cut_behind(session_dir, "call_started")
    (session_dir / "work").mkdir()
    node = StillRunning()
    runner = await go_on(Cluster(**{**vars(cluster), "executor": node}), model, result.session_id)
    going = asyncio.create_task(runner.run(asyncio.Event()))
    async with asyncio.timeout(20):
        await node.is_asked.wait()
    told = await calls_cancelled(runner.steps, Wish(kind="cancel_calls", calls=name))
    assert told.result == {"1.0": True} | ({"1.1": False} if name == "1" else {})
    async with asyncio.timeout(20):
        assert (await going).status == "completed"
    answers = [event for event in events_of(cluster, result.session_id) if isinstance(event, CallFinished)]
    assert answers[0].error_code == "CANCELLED"
    assert (await calls_cancelled(runner.steps, Wish(kind="cancel_calls", calls=name))).result == {}


class NotYet(OneNode):
    """Has a box ready when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: Any, **named: Any) -> PrepareOutcome:
        await self.may.wait()
        return await super().prepare(box, node)


async def test_a_call_that_waited_for_a_yes_is_cancelled_before_its_next_owner_comes_to_ask(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.script = lambda messages: Turn("done") if replies(messages) else Turn(calls=(bash("touch it"),))
    chosen = replace(wanted(tmp_path).workspace, policy=Policy.GUARDED)
    result = await play(cluster, model, wanted(tmp_path, workspace=chosen))
    session_dir = cluster.state_dir / "sessions" / result.session_id
    cut_behind(session_dir, "approval_asked")
    (session_dir / "work").mkdir()
    node, person = NotYet(), AlwaysForTheSession()
    later = Cluster(**{**vars(cluster), "placement": node, "executor": Table()})
    runner = await go_on(later, model, result.session_id, approver=person)
    going = asyncio.create_task(runner.run(asyncio.Event()))
    async with asyncio.timeout(20):
        while not (told := await calls_cancelled(runner.steps, Wish(kind="cancel_calls", calls="1.0"))).result:
            await asyncio.sleep(0.01)
    assert told.result == {"1.0": False}
    node.may.set()
    async with asyncio.timeout(20):
        assert (await going).status == "completed"
    (answer,) = [event for event in events_of(cluster, result.session_id) if isinstance(event, CallFinished)]
    assert (answer.error_code, person.asked) == ("CANCELLED", 0)
