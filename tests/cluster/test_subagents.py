"""Sub-agents in whole sessions, on real parts."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.approvals import Decided
from coordinator.session.call_events import CallFinished
from coordinator.session.events import ChildEvent, Event
from coordinator.session.history import validate
from coordinator.session.limits import Limits
from coordinator.session.session_events import ChildEnded, ChildStarted, SessionStarted
from coordinator.session.subagents import RULES
from coordinator.session.transcript import read_transcript
from worker.contract import keys
from worker.contract.approvals import ApprovalRequest
from worker.contract.orders import Policy

pytestmark = [pytest.mark.docker, pytest.mark.shared_node]


def task(prompt: str, profile: str = "explore", description: str = "look around") -> ScriptedCall:
    return ScriptedCall("Task", {"description": description, "prompt": prompt, "profile": profile})


def bash(command: str, **more: int) -> ScriptedCall:
    return ScriptedCall("Bash", {"command": command, **more})


def is_child(messages: list[dict[str, Any]]) -> bool:
    return RULES in str(messages[0]["content"])


def playing(own: list[Turn], **children: list[Turn]) -> Callable[[list[dict[str, Any]]], Turn]:
    """Return a script: the session's own turns, and those of each sub-agent by its prompt."""

    def turn(messages: list[dict[str, Any]]) -> Turn:
        validate(messages, for_request=True)
        turns = children[messages[1]["content"]] if is_child(messages) else own
        return turns[replies(messages)]

    return turn


def replies(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def contents(played: Any) -> list[dict[str, Any]]:
    own = [request for request in played.requests if not is_child(request["messages"])][-1]
    return [json.loads(message["content"]) for message in own["messages"] if message["role"] == "tool"]


def child_events(events: list[Event], kind: type[Event]) -> list[Any]:
    return [event.event for event in events if isinstance(event, ChildEvent) and isinstance(event.event, kind)]


class Asked:
    """A human who says yes and remembers what was asked, never asked two things at once."""

    waits = True

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []
        self.asking = 0

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.asking += 1
        assert self.asking == 1
        self.requests.append(request)
        await asyncio.sleep(0)
        self.asking -= 1
        return Decided(True, by="a test")


async def test_sub_agents_work_in_the_same_box_and_their_words_are_the_answers(stage: Any, embedded: Embedded) -> None:
    edit = {"path": "/workspace/a.txt", "old_string": "1", "new_string": "2"}
    script = playing(
        [
            Turn(calls=(bash("cd /tmp && echo $PWD"), ScriptedCall("Read", {"path": "/workspace/a.txt"}))),
            Turn(calls=(task("one"), task("two"), task("three", "general", "change it"))),
            Turn(calls=(bash("cat new.txt; pwd"), ScriptedCall("Edit", edit))),
            Turn("all done"),
        ],
        # Two that only read, at once; each waits in its box for the other one's mark.
        one=[
            Turn(calls=(ScriptedCall("Grep", {"pattern": "alpha"}), bash("touch nothing.txt"))),
            Turn(calls=(ScriptedCall("Task", {"description": "x", "prompt": "x"}),)),
            Turn("found alpha in a.txt"),
        ],
        two=[Turn(calls=(ScriptedCall("Read", {"path": "b.txt"}), bash("pwd"))), Turn("b.txt holds gamma")],
        three=[
            Turn(calls=(ScriptedCall("Edit", {"path": "a.txt", "old_string": "alpha", "new_string": "1"}),)),
            Turn(
                calls=(
                    ScriptedCall("Read", {"path": "a.txt"}),
                    ScriptedCall("Edit", {"path": "a.txt", "old_string": "alpha", "new_string": "1"}),
                    bash("head -c 90000 /dev/zero | tr '\\0' x; echo made > /tmp/new.txt; cd /home"),
                )
            ),
            Turn("a.txt begins with 1 now"),
        ],
    )  # fmt: skip
    played = await stage.play(script)
    assert (played.result.status, played.result.text) == ("completed", "all done"), played.result

    answers = contents(played)
    assert [answer["text"] for answer in answers[2:5]] == [
        "found alpha in a.txt",
        "b.txt holds gamma",
        "a.txt begins with 1 now",
    ]
    assert {answer["status"] for answer in answers[2:5]} == {"success"}
    assert answers[2]["data"]["steps"] == 3
    # The box is one, the working directory and what was read are each conversation's own.
    assert "made" in answers[5]["text"]
    assert "/tmp" in answers[5]["text"]
    assert answers[6]["error"]["code"] == "CONFLICT"

    did = child_events(played.events, CallFinished)
    first, second, third = ([one for one in did if one in of] for of in (_of(played.events, at) for at in (0, 1, 2)))
    assert [one.error_code for one in first] == [None, "PERMISSION_DENIED", "UNKNOWN_TOOL"]
    assert [one.error_code for one in second] == [None, None]
    assert "/workspace" in second[1].answer
    assert [one.error_code for one in third] == ["CONFLICT", None, None, None]
    assert (stage.project / "a.txt").read_text() == "1\nbeta\n"
    assert not (stage.project / "nothing.txt").exists()

    # What is spilled lies in the session's directory, under a name of the sub-agent's own.
    session_dir = Path(played.result.transcript).parent
    spilled = third[3].cut.path.removeprefix("/spill/")
    assert spilled == "1-2-2.1-2-2-1.txt"
    assert (session_dir / "spill" / spilled).stat().st_size >= 90_000

    _transcripts_hang_below(session_dir, played)
    _usage_flows_up(played)
    _nothing_is_left(embedded, played.result.session_id)


def _of(events: list[Event], index: int) -> list[Any]:
    return [event.event for event in events if isinstance(event, ChildEvent) and event.index == index]


def _transcripts_hang_below(session_dir: Path, played: Any) -> None:
    started = [event for event in played.events if isinstance(event, ChildStarted)]
    ended = [event for event in played.events if isinstance(event, ChildEnded)]
    assert sorted(one.index for one in started) == sorted(one.index for one in ended) == [0, 1, 2]
    for one in ended:
        assert one.child == f"{played.result.session_id}.1-2-{one.index}"
        reading = read_transcript(session_dir / one.transcript)
        kinds = [entry.fields["type"] for entry in reading.entries]
        assert (kinds[0], kinds[-1], reading.faults) == ("session_started", "session_ended", ())
        begun = reading.entries[0].event
        assert isinstance(begun, SessionStarted)
        assert begun.prompt in ("one", "two", "three")
    own = read_transcript(Path(played.result.transcript))
    kept = {entry.fields["type"] for entry in own.entries}
    assert {"child_started", "child_ended"} <= kept
    assert "child_event" not in kept


def _usage_flows_up(played: Any) -> None:
    ended = [event for event in played.events if isinstance(event, ChildEnded)]
    all_tokens = sum(_tokens(request) for request in played.requests)
    assert all_tokens > 0
    children = sum(one.usage.prompt_tokens for one in ended)
    own = sum(event.usage.prompt_tokens for event in played.events if event.type == "model_replied" and event.usage)
    assert played.result.usage.prompt_tokens == own + children
    assert played.result.calls == 7 + sum(one.calls for one in ended)


def _tokens(request: dict[str, Any]) -> int:
    return len(json.dumps(request))


def _nothing_is_left(embedded: Embedded, session: str) -> None:
    with redis.Redis.from_url(embedded.redis_url) as client:
        left = [name.decode() for name in client.keys("*") if session in name.decode()]
    assert left == []


async def test_a_sub_agents_questions_reach_the_same_human_under_its_name(stage: Any) -> None:
    asked = Asked()
    script = playing(
        [Turn(calls=(task("mend", "general", "mend the build"),)), Turn("done")],
        mend=[Turn(calls=(bash("touch made.txt"),)), Turn("mended")],
    )
    played = await stage.play(script, policy=Policy.GUARDED, approver=asked)
    assert [(one.agent, one.tool, one.text) for one in asked.requests] == [("mend the build", "Bash", "touch made.txt")]
    assert contents(played)[0]["text"] == "mended"
    assert (stage.project / "made.txt").exists()


async def test_a_sub_agent_that_comes_to_nothing_is_an_answer_too(stage: Any) -> None:
    def turn(messages: list[dict[str, Any]]) -> Turn:
        if not is_child(messages):
            own = [
                Turn(calls=(task("broken"), task("endless"), task("mute"))),
                Turn("I go on"),
            ]
            return own[replies(messages)]
        match messages[1]["content"]:
            case "broken":
                return Turn(status=400, error="no such thing")
            case "mute":
                return Turn("", finish_reason="content_filter")
            case _:
                return Turn("still looking", calls=(ScriptedCall("Glob", {"pattern": f"{len(messages)}*"}),))

    played = await stage.play(turn, limits=Limits(steps=3))
    broken, endless, mute = contents(played)
    assert broken["error"]["code"] == "EXECUTION_ERROR"
    assert "no such thing" in broken["error"]["message"]
    assert endless["status"] == "partial"
    assert "limit: steps" in endless["text"]
    assert "still looking" in endless["text"]
    assert mute["error"]["code"] == "LIMIT_REACHED"
    assert played.result.text == "I go on"


async def test_what_sub_agents_use_counts_against_the_sessions_limits(stage: Any) -> None:
    def turn(messages: list[dict[str, Any]]) -> Turn:
        if is_child(messages):
            return Turn(calls=(ScriptedCall("Glob", {"pattern": f"{len(messages)}*"}),))
        return Turn(calls=(task("a"), task("b")))

    played = await stage.play(turn, limits=Limits(steps=20, calls=6))
    ended = [event for event in played.events if isinstance(event, ChildEnded)]
    assert {one.status for one in ended} == {"stopped"}
    assert all("limit: calls" in one.stop_reason for one in ended), ended
    assert sum(one.calls for one in ended) <= 8
    assert played.result.status == "stopped"


async def test_a_cancel_goes_down_to_what_runs_in_the_box(stage: Any, embedded: Embedded) -> None:
    cancelled = asyncio.Event()
    script = playing(
        [Turn(calls=(task("wait", "general"),))],
        wait=[Turn(calls=(bash("touch begun; sleep 300; touch ended", timeout_ms=600_000),))],
    )
    playing_task = asyncio.create_task(stage.play(script, cancelled=cancelled))
    while not (stage.project / "begun").exists():
        assert not playing_task.done(), playing_task.result()
        await asyncio.sleep(0.02)
    cancelled.set()
    played = await asyncio.wait_for(playing_task, 60)
    assert played.result.status == "cancelled"
    (ended,) = [event for event in played.events if isinstance(event, ChildEnded)]
    assert ended.status == "cancelled"
    (did,) = child_events(played.events, CallFinished)
    assert did.error_code == "CANCELLED"
    assert not (stage.project / "ended").exists()
    _nothing_is_left(embedded, played.result.session_id)


async def test_without_depth_there_is_no_such_tool_and_with_more_they_nest(stage: Any) -> None:
    script = playing(
        [Turn(calls=(task("outer"),)), Turn("done")],
        outer=[Turn(calls=(task("inner"),)), Turn("outer is done")],
        inner=[Turn(calls=(ScriptedCall("Read", {"path": "a.txt"}), task("x"))), Turn("inner is done")],
    )
    played = await stage.play(script, task_depth=2)
    assert contents(played)[0]["text"] == "outer is done"
    assert played.result.calls == 1 + 1 + 2
    directories = sorted(path.name for path in (Path(played.result.transcript).parent / "children").iterdir())
    assert directories == ["1-1-0", f"1-1-0{keys.CHILD_MARK}1-1-0"]
    inner = [one for one in played.requests if is_child(one["messages"]) and one["messages"][1]["content"] == "inner"]
    assert "Task" not in [tool["function"]["name"] for tool in inner[0]["tools"]]

    alone = await stage.play([Turn(calls=(task("a"),)), Turn("done")], task_depth=0)
    assert contents(alone)[0]["error"]["code"] == "UNKNOWN_TOOL"
