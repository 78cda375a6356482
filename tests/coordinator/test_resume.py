"""A session that goes on after its owner ended, at whatever moment that was."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.outcomes import cancelled_outcome
from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Wish
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.errors import ConfigError, NoBox, NoSource, TranscriptError
from coordinator.session.approvals import Always, Decided
from coordinator.session.box_options import BoxOptions
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.cancelling import calls_cancelled
from coordinator.session.events import Event
from coordinator.session.exporting import ExportFormat, export
from coordinator.session.history import validate
from coordinator.session.limits import Limits
from coordinator.session.loop import Ending
from coordinator.session.model_table import ModelTable
from coordinator.session.reading import read_session
from coordinator.session.rebuild import rebuild
from coordinator.session.result import SessionResult
from coordinator.session.resume import check, continuing, find
from coordinator.session.runner import SessionRunner
from coordinator.session.saved import NAME, read_saved
from coordinator.session.session_events import TAKEOVER, SessionEnded, TurnEnded
from coordinator.session.step_events import UserMessage
from coordinator.session.takeover import Orphan, adopt, strays
from coordinator.session.transcript import segment_path
from tests.coordinator.resuming import OneNode, Table, in_memory_cluster
from tests.coordinator.ten_steps import (
    HOME,
    KEY,
    bash,
    by_replies,
    cluster,
    endpoint,
    events_of,
    go_on,
    model,
    play,
    read,
    replies,
    wanted,
)
from worker.contract import keys
from worker.contract.approvals import ApprovalRequest
from worker.contract.extras import ENV_FILE, BoxExtras
from worker.contract.orders import (
    BoxOrder,
    CallOrder,
    CallOutcome,
    FinishOutcome,
    NodeLife,
    Policy,
    PrepareOutcome,
)

__all__ = ["cluster", "endpoint", "model"]


def content_of(result: SessionResult) -> bytes:
    return Path(result.transcript).read_bytes()


def cuts(content: bytes) -> Iterator[int]:
    """Before anything, behind each line, and within some."""
    at = 0
    yield at
    for number, line in enumerate(content.splitlines(keepends=True)):
        if number and number % 9 == 0:
            yield at + len(line) // 2
        at += len(line)
        yield at


async def test_a_session_goes_on_wherever_its_owner_was_killed(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    chosen = replace(wanted(tmp_path).workspace, policy=Policy.GUARDED)
    whole = await play(cluster, model, wanted(tmp_path, workspace=chosen))
    assert (whole.status, whole.steps) == ("completed", 10), whole
    session_dir = Path(whole.transcript).parent
    content, questions = content_of(whole), 0
    for number, at in enumerate(cuts(content)):
        name = f"20300131-120000-{number:08x}"
        copy = session_dir.parent / name
        copy.mkdir()
        (copy / "work").mkdir()
        shutil.copy(session_dir / NAME, copy)
        (copy / f"{name}.1.jsonl").write_bytes(content[:at])
        before = rebuild(read_session(copy).entries)
        opened = before.open_step
        begun = begun_in(events_of(cluster, name))
        asked = {f"{opened.step}.{index}" for index in opened.asked} if opened else set()
        questions += len(asked)
        table = Table(known=begun)
        runner = await go_on(
            Cluster(**{**vars(cluster), "executor": table}), model, name, "more" if before.ended else ""
        )
        # Two more steps show what would go wrong.
        last = replies(before.history.messages) + 2
        endpoint.script = lambda messages, last=last: (
            by_replies(messages) if replies(messages) < min(last, 9) else Turn("All done.")
        )
        result = await runner.run(asyncio.Event())
        assert result.status == "completed", (at, result)
        assert set(table.ran.values()) <= {1}, "no call runs twice"
        assert not begun & set(table.ran), "what was started is not started again"
        assert asked <= set(table.ran), "who was asked is asked on"
        assert {place for place, has_begun in table.recovered.items() if has_begun} == begun - HOME
        check_whole(events_of(cluster, name))
        after = rebuild(read_session(copy).entries)
        validate(after.history.messages)
        assert after.text == result.text
        shutil.rmtree(copy)
    assert questions


def begun_in(events: list[Event]) -> set[str]:
    """Steps and indexes of the calls that were started and not answered."""
    started = {f"{event.step}.{event.index}" for event in events if isinstance(event, CallStarted)}
    return started - {f"{event.step}.{event.index}" for event in events if isinstance(event, CallFinished)}


def check_whole(events: list[Event]) -> None:
    """Each call has one answer, and the session one end."""
    answered = [(event.step, event.index) for event in events if isinstance(event, CallFinished)]
    assert len(answered) == len(set(answered))
    started = {(event.step, event.index) for event in events if isinstance(event, CallStarted)}
    assert started <= set(answered)
    assert isinstance(events[-1], SessionEnded)


class NoRoom(OneNode):
    """Has room for nobody."""

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: Any, **named: Any) -> PrepareOutcome:
        raise NoBox("the engine does not answer")


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_calls_that_nobody_can_ask_about_any_more_have_their_answers(
    cluster: Cluster, model: ModelClient, tmp_path: Path, is_cancelled: bool
) -> None:
    whole = await play(cluster, model, wanted(tmp_path))
    session_dir = Path(whole.transcript).parent
    cut_behind(session_dir, "call_started")
    (session_dir / "work").mkdir()
    before = events_of(cluster, whole.session_id)
    (begun,) = begun_in(before)
    runner = await go_on(Cluster(**{**vars(cluster), "placement": NoRoom()}), model, whole.session_id)
    cancelled = asyncio.Event()
    if is_cancelled:
        cancelled.set()
    result = await runner.run(cancelled)

    assert result.status == ("cancelled" if is_cancelled else "failed"), result
    events = events_of(cluster, whole.session_id)
    check_whole(events)
    validate(rebuild(read_session(session_dir).entries).history.messages)
    told = {f"{one.step}.{one.index}": one for one in events[len(before) :] if isinstance(one, CallFinished)}
    assert told[begun].error_code == "OUTCOME_UNKNOWN"
    assert {one.error_code for place, one in told.items() if place != begun} <= {"CANCELLED"}


@pytest.mark.parametrize("age", [timedelta(minutes=1), timedelta(hours=1)])
async def test_that_a_call_has_no_claim_proves_nothing_once_that_would_have_expired(
    cluster: Cluster, model: ModelClient, tmp_path: Path, age: timedelta
) -> None:
    whole = await play(cluster, model, wanted(tmp_path))
    session_dir = Path(whole.transcript).parent
    cut_behind(session_dir, "call_started")
    (session_dir / "work").mkdir()
    age_lines(Path(whole.transcript), age)
    (begun,) = begun_in(events_of(cluster, whole.session_id))
    table = Table()
    runner = await go_on(Cluster(**{**vars(cluster), "executor": table}), model, whole.session_id)
    await runner.run(asyncio.Event())

    life = await cluster.store.run_id()
    assert table.claimed_in[begun] == (life if age < timedelta(minutes=30) else "")


def age_lines(path: Path, age: timedelta) -> None:
    """Let a transcript be so old."""
    at = (datetime.now(UTC) - age).isoformat(timespec="milliseconds")
    lines = [{**json.loads(line), "at": at} for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))


async def test_what_the_model_gets_is_what_it_would_have_got(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    result = await play(cluster, model, wanted(tmp_path))
    sent = endpoint.requests[-1]["messages"]
    rebuilt = rebuild(read_session(Path(result.transcript).parent).entries)
    assert rebuilt.history.messages == [*sent, {"role": "assistant", "content": "All done."}]
    assert (rebuilt.steps, rebuilt.calls) == (result.steps, result.calls)


async def test_who_is_not_killed_is_not_robbed(cluster: Cluster, model: ModelClient, tmp_path: Path) -> None:
    waits = asyncio.Event()

    async def never(turn: TurnEnded) -> str | None:
        waits.set()
        await asyncio.Event().wait()
        return None

    request = wanted(tmp_path)
    runner = SessionRunner(request, cluster=cluster, model=model, approver=Always(), sinks=[], next_message=never)
    running = asyncio.create_task(runner.run(asyncio.Event()))
    await asyncio.wait_for(waits.wait(), 60)
    with pytest.raises(ConfigError, match="runs"):
        await go_on(cluster, model, runner.session_id, "hello")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_completed_session_goes_on_with_a_message_only(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    result = await play(cluster, model, wanted(tmp_path))
    with pytest.raises(ConfigError, match="Give it a message"):
        await go_on(cluster, model, result.session_id)
    with pytest.raises(ConfigError, match="private copy that is gone"):
        await go_on(cluster, model, result.session_id, "and now?")


async def test_a_session_ends_before_its_next_request_whatever_it_was_at_when_its_transcript_failed(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    """A tool that runs here keeps an event of its own, and each fault of such a tool becomes its answer."""

    def fail_for_a_moment(event: Event) -> None:
        file = runner._emit.transcript._file
        if isinstance(event, CallStarted) and event.tool == "TodoWrite":
            aside.append(os.dup(file))
            with Path("/dev/full").open("wb") as full:
                os.dup2(full.fileno(), file)
        elif isinstance(event, CallFinished) and event.tool == "TodoWrite":
            os.dup2(aside[0], file)

    aside: list[int] = []
    runner = SessionRunner(wanted(tmp_path), cluster=cluster, model=model, approver=Always(), sinks=[fail_for_a_moment])
    result = await runner.run(asyncio.Event())
    os.close(aside[0])
    assert (result.status, result.stop_reason[:8], len(endpoint.requests)) == ("failed", "storage:", 3), result


async def test_turn_by_turn(cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.script = [Turn("first"), Turn(calls=(read("a"),))]
    endpoint.script = lambda messages: Turn(f"answer {sum(one['role'] == 'user' for one in messages)}")
    said = iter(["second", "third"])

    async def ask(turn: TurnEnded) -> str | None:
        return next(said, None)

    result = await play(cluster, model, wanted(tmp_path, limits=Limits(steps=1)), next_message=ask)
    assert (result.status, result.text, result.steps) == ("completed", "answer 3", 3)
    events = events_of(cluster, result.session_id)
    assert [event.text for event in events if isinstance(event, TurnEnded)] == ["answer 1", "answer 2", "answer 3"]
    assert [event.text for event in events if isinstance(event, UserMessage)] == ["second", "third"]


async def test_a_session_that_stopped_keeps_its_copy_and_goes_on(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.script = lambda messages: (
        Turn("never mind") if "No tool can be called" in messages[-1]["content"] else by_replies(messages)
    )
    stopped = await play(cluster, model, wanted(tmp_path, limits=Limits(steps=2)))
    assert stopped.status == "stopped"
    placement = cluster.placement
    assert isinstance(placement, OneNode)
    assert placement.finished[-1][1], "the copy is kept"
    endpoint.script = lambda messages: Turn("on it")
    runner = await go_on(cluster, model, stopped.session_id)
    result = await runner.run(asyncio.Event())
    assert (result.status, result.text) == ("completed", "on it")
    last = endpoint.requests[-1]["messages"][-1]
    assert "fresh sandbox" in last["content"]
    assert "goes on" in last["content"]


async def test_no_secret_is_kept_with_the_request(cluster: Cluster, endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    url = endpoint.base_url.replace("://", "://me:hidden-word@")
    client = ModelClient(ModelSettings("scripted", base_url=url, api_key=KEY))
    box = BoxOptions(extras=BoxExtras(env_names=("TOKEN_OF_MINE",)), env={"TOKEN_OF_MINE": "value-of-mine"})
    request = wanted(tmp_path, prompt=f"use {KEY}", box=box)
    runner = SessionRunner(request, cluster=cluster, model=client, approver=Always(), sinks=[], secrets=[KEY])
    await client.close()
    kept = (runner.session_dir / NAME).read_text()
    for secret in (KEY, "hidden-word", "value-of-mine"):
        assert secret not in kept
    assert (runner.session_dir / NAME).stat().st_mode & 0o777 == 0o600
    again = read_saved(runner.session_dir).to_request(ModelTable())
    assert again.workspace == request.workspace
    assert again.box.extras == request.box.extras
    (runner.session_dir / ENV_FILE).unlink()
    with pytest.raises(ConfigError, match="TOKEN_OF_MINE"):
        check(find(cluster.state_dir, runner.session_id), again)


async def test_a_request_of_a_later_release_is_refused(cluster: Cluster, model: ModelClient, tmp_path: Path) -> None:
    runner = SessionRunner(wanted(tmp_path), cluster=cluster, model=model, approver=Always(), sinks=[])
    path = runner.session_dir / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "v": 99}))
    with pytest.raises(TranscriptError, match="later release"):
        read_saved(runner.session_dir)
    path.unlink()
    with pytest.raises(TranscriptError, match="nobody can go on"):
        read_saved(runner.session_dir)


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

    async def recover(
        self,
        order: CallOrder,
        timeout_s: float,
        *,
        run_id: str,
        has_begun: bool,
        cancelled: asyncio.Event,
        stopped: asyncio.Event,
    ) -> CallOutcome:
        if order.key.index == 0:
            self.is_asked.set()
            await stopped.wait()
            return cancelled_outcome(order.key, "A person cancelled this call.")
        return await super().recover(
            order, timeout_s, run_id=run_id, has_begun=has_begun, cancelled=cancelled, stopped=stopped
        )


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


def cut_before(path: Path, kind: str) -> None:
    """End a transcript before the first event of a kind."""
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if f'"type":"{kind}"' in line)
    path.write_text("".join(lines[:at]))


def cut_behind(session_dir: Path, kind: str) -> None:
    """End a transcript behind the first event of a kind."""
    (path,) = session_dir.glob("*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if f'"type":"{kind}"' in line)
    path.write_text("".join(lines[: at + 1]))


class AlwaysForTheSession(Always):
    """A person who says `always`, once; who is asked again is a failure."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.asked += 1
        return Decided(True, by="a person", is_lasting=True)


async def test_what_was_allowed_and_seen_comes_back(
    cluster: Cluster, model: ModelClient, endpoint: ScriptedEndpoint, tmp_path: Path, redis_client: redis.Redis
) -> None:
    endpoint.script = lambda messages: (
        Turn("enough") if "No tool can be called" in str(messages[-1]["content"]) else Turn(calls=(bash("touch x"),))
    )
    person = AlwaysForTheSession()

    async def note(turn: TurnEnded) -> str | None:
        session = next(iter((cluster.state_dir / "sessions").iterdir())).name
        redis_client.hset(keys.seen(session), "/workspace/a", "1 record")
        return None

    chosen = replace(wanted(tmp_path).workspace, policy=Policy.GUARDED)
    request = wanted(tmp_path, workspace=chosen, limits=Limits(steps=2))
    runner = SessionRunner(request, cluster=cluster, model=model, approver=person, sinks=[], next_message=note)
    stopped = await runner.run(asyncio.Event())
    assert (stopped.status, person.asked) == ("stopped", 1)
    # As a session's end does it.
    redis_client.delete(keys.seen(stopped.session_id))
    seen: list[object] = []

    async def look(turn: TurnEnded) -> str | None:
        seen.append(redis_client.hgetall(keys.seen(stopped.session_id)))
        return None

    again = await go_on(cluster, model, stopped.session_id, approver=person, next_message=look)
    result = await again.run(asyncio.Event())
    assert (result.status, person.asked) == ("stopped", 1), "it was allowed for the whole session"
    assert seen == [{b"/workspace/a": b"1 record"}]
