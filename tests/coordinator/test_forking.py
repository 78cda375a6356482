"""What a fork knows: up to which step, and what is counted anew."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.reply import ModelReply, RawCall
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.errors import ConfigError
from coordinator.session.approvals import Always
from coordinator.session.box_options import BoxOptions
from coordinator.session.catching_up import FORKED
from coordinator.session.copying import Copying, TakenStep
from coordinator.session.forking import demand_forkable, lay_out, request_of, step_of
from coordinator.session.history import History, validate
from coordinator.session.limits import Limits
from coordinator.session.model_table import ModelTable
from coordinator.session.place import SessionPlace
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest
from coordinator.session.resume import Resumable, find, kept_env, resume
from coordinator.session.runner import SessionRunner
from coordinator.session.saved import save_session
from coordinator.session.session_events import SessionForked
from coordinator.session.step_events import ModelReplied, ReplyTaken
from coordinator.session.takeover import strays
from coordinator.session.workspace_choice import Chosen
from tests.coordinator.beginnings import started as begun
from tests.coordinator.resuming import in_memory_cluster
from worker.contract.extras import ENV_FILE, BoxExtras
from worker.contract.orders import Policy, WorkspaceMode

CALLS = [
    Turn("I look.", calls=(ScriptedCall("Bash", {"command": "echo 1"}),)),
    Turn(calls=(ScriptedCall("Bash", {"command": "echo 2"}), ScriptedCall("Read", {"path": "a"}))),
    Turn("All done."),
    Turn("Done again."),
]


def by_replies(messages: list[dict[str, object]]) -> Turn:
    return CALLS[sum(message["role"] == "assistant" for message in messages)]


def request(workspace: Path) -> SessionRequest:
    chosen = Chosen(workspace, WorkspaceMode.COPY, "a test", Policy.BOXED, as_root=False)
    return SessionRequest("do it", chosen, "image", Limits(steps=9), keep="always", is_adoptable=True)


async def test_a_fork_goes_on_with_what_was_said_and_counts_anew(redis_url: str, state_dir: Path) -> None:
    with ScriptedEndpoint(by_replies) as endpoint:
        settings = ModelSettings("scripted", base_url=endpoint.base_url)
        model = ModelClient(settings)
        async with in_memory_cluster(redis_url, state_dir) as cluster:
            first = SessionRunner(
                request(state_dir), cluster=cluster, model=model, approver=Always(), sinks=[], session_id="s1"
            )
            ended = await first.run(asyncio.Event())
            assert (ended.status, ended.steps, ended.calls) == ("completed", 3, 3)
            found = find(state_dir, "s1")
            demand_forkable(found, None, is_live=False)
            wanted = replace(request_of(found, ModelTable()), limits=Limits(steps=5))
            shutil.copytree(state_dir / "sessions/s1/work", state_dir / "sessions/s2/work")
            lay_out(found, "s2", wanted, replace(settings, model="other"), 3)

            fork = find(state_dir, "s2")
            assert fork.rebuilt.history.messages == found.rebuilt.history.messages
            assert (fork.rebuilt.steps, fork.rebuilt.calls, fork.rebuilt.usages) == (3, 0, [])
            assert fork.rebuilt.elapsed_s == 0.0
            assert fork.rebuilt.ended is None
            assert isinstance(fork.reading.entries[-1].event, SessionForked)
            assert fork.rebuilt.started is not None
            assert (fork.rebuilt.started.session_id, fork.rebuilt.started.forked_from) == ("s2", "s1")
            assert (fork.rebuilt.started.model, fork.saved.to_model(None).model) == ("other", "other")
            assert strays(state_dir) == {}, "a fork that waits for its turn is begun by who made it"

            runner = await resume(
                fork, wanted, cluster=cluster, model=model, approver=Always(), sinks=[], message="and now?"
            )
            result = await runner.run(asyncio.Event())
            assert (result.status, result.text, result.steps, result.calls) == ("completed", "Done again.", 4, 0)
            after = find(state_dir, "s2").rebuilt
            assert after.history.messages[-2]["content"] == f"[{FORKED}]\n\nand now?"
            validate(after.history.messages)
            assert len(after.usages) == 1
            assert find(state_dir, "s1").rebuilt.history.messages == found.rebuilt.history.messages
        await model.close()


@pytest.fixture
def found(tmp_path: Path) -> Resumable:
    """A session of three steps, the last of which made no call, and a fourth after a message."""
    session_dir = tmp_path / "sessions" / "s1"
    session_dir.mkdir(parents=True)
    (session_dir / "work").mkdir()
    started = begun("s1")
    events: list[dict[str, object]] = [started.model_dump(mode="json")]
    for step in (1, 2, 3, 4):
        if step == 4:
            events += [
                {"type": "turn_ended", "status": "completed", "stop_reason": "done", "text": "x"},
                {"type": "user_message", "text": "more"},
            ]
        calls = [{"index": 0, "id": f"c{step}", "name": "Bash", "arguments": "{}"}] if step < 3 else []
        events += [
            {"type": "step_started", "step": step},
            {"type": "model_replied", "step": step, "text": "x", "calls": calls, "finish_reason": "stop"},
            {"type": "reply_taken", "call_ids": [f"c{step}"] if calls else [], "has_calls": bool(calls)},
        ]
        if calls:
            about = {"step": step, "index": 0, "call_id": f"c{step}", "tool": "Bash"}
            events.append({"type": "call_started", **about})
            events.append({"type": "call_finished", **about, "status": "success", "answer": f"a{step}"})
    events.append(
        {"type": "session_ended", "status": "stopped", "stop_reason": "x", "text": "", "steps": 4, "calls": 2}
    )
    lines = [
        json.dumps({"v": 1, "seq": at, "at": "2030-01-31T12:00:00.000Z", **one}) for at, one in enumerate(events, 1)
    ]
    (session_dir / "s1.1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    save_session(session_dir, "s1", request(tmp_path), ModelSettings("m"), Redactor(()))
    return find(tmp_path, "s1")


def test_only_steps_whose_workspace_is_known_can_be_forked_at(found: Resumable) -> None:
    entries = found.reading.entries
    assert step_of(entries, None) == 4
    assert [step_of(entries, step) for step in (2, 3, 4)] == [2, 3, 4], "steps 3 and 4 changed nothing"
    with pytest.raises(ConfigError, match=r"step 2 made calls behind step 1. Give 4"):
        step_of(entries, 1)
    with pytest.raises(ConfigError, match="no step 5"):
        step_of(entries, 5)
    assert step_of(entries, 1, last=1) == 1, "calls that came after the copy are not in it"


@pytest.mark.parametrize(("step", "said"), [(2, []), (3, []), (4, ["more"])])
def test_a_fork_ends_with_its_step(found: Resumable, tmp_path: Path, step: int, said: list[str]) -> None:
    (tmp_path / "sessions" / "s2").mkdir()
    lay_out(found, "s2", request_of(found, ModelTable()), ModelSettings("m"), step)
    fork = find(tmp_path, "s2")
    messages = fork.rebuilt.history.messages
    assert [one["content"] for one in messages if one["role"] == "user"] == ["p", *said]
    assert sum(one["role"] == "assistant" for one in messages) == step
    assert [one["content"] for one in messages if one["role"] == "tool"] == ["a1", "a2"]
    assert fork.rebuilt.steps == step


class Noted(SessionPlace):
    """A place that only notes for whom a copy was wanted."""

    def __init__(self) -> None:
        self.copies: list[str] = []
        self._has_stood = self._is_seated = True

    async def copy_to(self, target: str) -> None:
        self.copies.append(target)


async def test_a_session_that_runs_is_copied_between_two_steps() -> None:
    place, history, running, taken = Noted(), History("system"), asyncio.Lock(), TakenStep()
    history.journal = lambda event: taken(event) if isinstance(event, ReplyTaken) else None
    history.add_user("do it")
    copying = Copying(place, history, running, taken)
    call = RawCall(0, "c", "Bash", "{}")
    taken(ModelReplied(step=1, text="", calls=(call,), finish_reason="tool_calls"))
    history.add_reply(ModelReply("", (call,), "tool_calls", None, None, {}), ["c"])
    async with running:
        asked = asyncio.create_task(copying.copy_to("fork"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert place.copies == [], "its calls run"
    for _ in range(5):
        await asyncio.sleep(0)
    assert place.copies == [], "their answers are being fitted together"
    history.add_answers(["done"])
    async with asyncio.timeout(30):
        assert await asked == 1
    assert place.copies == ["fork"]
    assert await copying.copy_to("other") == 1, "while the model is asked, nothing runs"


def test_a_fork_has_the_boxs_variables_or_says_which_are_missing(found: Resumable, tmp_path: Path) -> None:
    wanted = request_of(found, ModelTable())
    wanted = replace(wanted, box=BoxOptions(BoxExtras(env_names=("TOKEN",))))
    fork_dir = tmp_path / "sessions" / "s2"
    fork_dir.mkdir()
    with pytest.raises(ConfigError, match="TOKEN"):
        lay_out(found, "s2", wanted, ModelSettings("m"), 4)
    assert list(fork_dir.iterdir()) == []
    (found.session_dir / ENV_FILE).write_text('{"TOKEN": "kept of the session"}')
    lay_out(found, "s2", wanted, ModelSettings("m"), 4, env={"MORE": "given anew"})
    assert kept_env(fork_dir) == {"TOKEN": "kept of the session", "MORE": "given anew"}
    assert (fork_dir / ENV_FILE).stat().st_mode & 0o777 == 0o600
    texts = "".join(one.read_text() for one in fork_dir.iterdir() if one.name != ENV_FILE)
    assert "kept of the session" not in texts
    assert find(tmp_path, "s2").saved.to_request(ModelTable()).box.extras.env_names == ("TOKEN", "MORE")


def test_what_cannot_be_forked_is_said_with_what_to_do(found: Resumable, tmp_path: Path) -> None:
    demand_forkable(found, None, is_live=False)
    broken = replace(found, rebuilt=replace(found.rebuilt, ended=None))
    demand_forkable(broken, None, is_live=True)
    with pytest.raises(ConfigError, match="sandhog resume s1"):
        demand_forkable(broken, None, is_live=False)
    (found.session_dir / "work").rmdir()
    with pytest.raises(ConfigError, match="keep"):
        demand_forkable(found, None, is_live=False)
    demand_forkable(found, None, is_live=True)
