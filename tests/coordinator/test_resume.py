"""A session that goes on after its owner ended, at whatever moment that was."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import ScriptedEndpoint, Turn
from coordinator.errors import ConfigError, NoBox, TranscriptError
from coordinator.session.approvals import Always
from coordinator.session.box_options import BoxOptions
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.events import Event
from coordinator.session.history import validate
from coordinator.session.limits import Limits
from coordinator.session.model_table import ModelTable
from coordinator.session.reading import read_session
from coordinator.session.rebuild import rebuild
from coordinator.session.resume import check, find
from coordinator.session.runner import SessionRunner
from coordinator.session.saved import NAME, read_saved
from coordinator.session.session_events import TurnEnded
from coordinator.session.step_events import UserMessage
from tests.coordinator.left_open import AlwaysForTheSession, age_lines, begun_in, check_whole, content_of, cut_behind
from tests.coordinator.resuming import OneNode, Table
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
from worker.contract.extras import ENV_FILE, BoxExtras
from worker.contract.orders import (
    BoxOrder,
    NodeLife,
    Policy,
    PrepareOutcome,
)

__all__ = ["cluster", "endpoint", "model"]


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
