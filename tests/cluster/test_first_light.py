"""One session, end to end, on real parts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.history import validate
from coordinator.session.limits import Limits
from coordinator.session.transcript import read_transcript
from tests.cluster.machines import calls_of, watched_queue

pytestmark = [pytest.mark.docker, pytest.mark.shared_node]


def by_call(messages: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The headers of the call messages of step 1, by the call's index."""
    calls = [message["headers"] for message in messages if message["headers"]["task"] == "sandhog.call"]
    return {int(headers["id"].split(":")[3]): headers for headers in calls}


async def test_calls_travel_in_groups_and_chains_and_come_back_in_order(stage: Any, embedded: Embedded) -> None:
    turn = Turn(
        text="looking",
        calls=(
            ScriptedCall("Read", {"path": "a.txt"}, id="one"),
            ScriptedCall("Read", {"path": "b.txt"}, id="two"),
            ScriptedCall("Edit", {"path": "a.txt", "old_string": "beta", "new_string": "delta"}, id="three"),
            ScriptedCall("Grep", {"pattern": "delta"}, id="four"),
        ),
    )
    with watched_queue(embedded.redis_url, embedded.node) as messages:
        played = await stage.play([turn, Turn("all done")])

    assert played.result.status == "completed", played.result
    assert played.result.text == "all done"
    assert (stage.project / "a.txt").read_text() == "alpha\ndelta\n"
    answers = played.answers()
    assert [answer["tool_call_id"] for answer in answers] == ["one", "two", "three", "four"]
    contents = [json.loads(str(answer["content"])) for answer in answers]
    assert [content["status"] for content in contents] == ["success"] * 4, contents
    assert "alpha" in contents[0]["text"]
    assert "gamma" in contents[1]["text"]
    assert "delta" in contents[3]["text"]
    for request in played.requests:
        validate(request["messages"], for_request=True)
    assert played.requests[-1]["messages"][2]["content"] == "looking"
    headers = by_call(messages)
    assert headers[0]["group"] == headers[1]["group"] is not None, "the reads are one group"
    assert headers[2]["group"] != headers[0]["group"]
    assert headers[3]["group"] != headers[0]["group"]
    finished = [event for event in played.events if isinstance(event, CallFinished)]
    assert sorted(event.index for event in finished) == [0, 1, 2, 3]


async def test_unsafe_neighbours_are_one_chain_whose_links_run_after_each_other(stage: Any, embedded: Embedded) -> None:
    turn = Turn(
        calls=(
            ScriptedCall("Bash", {"command": "sleep 0.3; echo first >> log; exit 3"}),
            ScriptedCall("Bash", {"command": "echo second >> log; cat log"}),
            ScriptedCall("Write", {"path": "new/c.txt", "content": "three\n"}),
        )
    )
    with watched_queue(embedded.redis_url, embedded.node) as messages:
        played = await stage.play([turn, Turn("done")])

    contents = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert [content["status"] for content in contents] == ["partial", "success", "success"]
    assert contents[0]["data"]["exit_code"] == 3
    assert contents[1]["text"].split() == ["first", "second"]
    assert (stage.project / "new" / "c.txt").read_text() == "three\n"
    (message,) = [one for one in messages if one["headers"]["task"] == "sandhog.call"]
    assert [name.rsplit(":", 2)[1] for name in calls_of(message)] == ["0", "1", "2"]


async def test_a_bad_call_is_answered_and_its_neighbours_run(stage: Any) -> None:
    turn = Turn(
        calls=(
            ScriptedCall("Read", "{"),
            ScriptedCall("Fly", {"to": "the moon"}),
            ScriptedCall("Read", {"path": "a.txt", "colour": "red"}),
            ScriptedCall("Read", {"path": "a.txt"}),
            ScriptedCall("Read", {"path": "nowhere.txt"}),
            ScriptedCall("Edit", {"path": "a.txt", "old_string": "nowhere", "new_string": "x"}),
            ScriptedCall("Bash", {"command": "cat a.txt"}),
        )
    )
    played = await stage.play([turn, Turn("done")])
    contents = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert [content.get("error", {}).get("code") for content in contents] == [
        "INVALID_PARAM",
        "UNKNOWN_TOOL",
        "INVALID_PARAM",
        None,
        "NOT_FOUND",
        "INVALID_PARAM",
        None,
    ]
    assert "alpha" in contents[3]["text"], "its neighbour in the group failed"
    assert "alpha" in contents[6]["text"], "the link before it failed"
    assert "Bash, BashOutput, Edit" in contents[1]["error"]["message"]
    started = [event for event in played.events if isinstance(event, CallStarted)]
    assert sorted(event.index for event in started) == [3, 4, 5, 6], "nothing was sent for the bad ones"


async def test_a_large_output_is_cut_and_readable_from_inside(stage: Any) -> None:
    def script(messages: list[dict[str, Any]]) -> Turn:
        answers = [message for message in messages if message["role"] == "tool"]
        if not answers:
            return Turn(calls=(ScriptedCall("Bash", {"command": "seq 1 30000"}),))
        if len(answers) == 1:
            path = json.loads(answers[0]["content"])["text"].split("all of it: ")[1].split()[0]
            return Turn(
                calls=(
                    ScriptedCall("Read", {"path": path, "offset": 15000, "limit": 1}),
                    ScriptedCall("Grep", {"path": path, "pattern": "^17171$"}),
                )
            )
        return Turn("done")

    played = await stage.play(script)
    contents = [json.loads(str(answer["content"])) for answer in played.answers()]
    assert len(contents[0]["text"].encode()) <= 50_000
    assert len(contents[0]["text"].encode()) > 45_000
    assert contents[0]["text"].startswith("1\n2\n")
    assert "30000" in contents[0]["text"][-200:]
    assert "15000" in contents[1]["text"]
    assert "17171" in contents[2]["text"]


async def test_a_private_copy_becomes_a_patch_and_the_directory_stays(stage: Any) -> None:
    turn = Turn(calls=(ScriptedCall("Bash", {"command": "echo more >> a.txt; echo x > n.txt; chmod +x n.txt"}),))
    played = await stage.play([turn, Turn("done")], copy=True)
    assert played.result.workspace_mode == "copy"
    assert "+more" in (played.result.patch or "")
    assert "new file mode 100755" in (played.result.patch or "")
    assert (stage.project / "a.txt").read_text() == "alpha\nbeta\n"
    assert not (Path(played.result.transcript).parent / "work").exists()


async def test_the_patch_of_a_private_copy_is_applied_when_asked(stage: Any) -> None:
    turn = Turn(calls=(ScriptedCall("Bash", {"command": "echo more >> a.txt"}),))
    played = await stage.play([turn, Turn("done")], copy=True, apply=True)
    assert played.result.applied
    assert (stage.project / "a.txt").read_text() == "alpha\nbeta\nmore\n"


async def test_a_cancelled_step_leaves_a_valid_history_and_a_whole_transcript(stage: Any) -> None:
    cancelled = asyncio.Event()
    turn = Turn(
        calls=(
            ScriptedCall("Bash", {"command": "echo begun; touch begun; sleep 60"}),
            ScriptedCall("Bash", {"command": "touch never"}),
        )
    )
    begun = stage.project / "begun"

    async def cancel_once_begun() -> None:
        while not begun.exists():
            await asyncio.sleep(0.02)
        cancelled.set()

    watcher = asyncio.create_task(cancel_once_begun())
    played = await stage.play([turn], cancelled=cancelled)
    await watcher
    assert played.result.status == "cancelled"
    finished = [event for event in played.events if isinstance(event, CallFinished)]
    assert [event.error_code for event in sorted(finished, key=lambda one: one.index)] == ["CANCELLED", "CANCELLED"]
    assert "begun" in finished[0].answer, "what was printed is reported"
    assert not (stage.project / "never").exists()
    reading = read_transcript(Path(played.result.transcript))
    assert reading.faults == ()
    assert reading.torn_bytes == 0
    assert reading.entries[-1].fields["type"] == "session_ended"


async def test_steps_are_bounded(stage: Any) -> None:
    played = await stage.play(lambda _: Turn(calls=(ScriptedCall("Read", {"path": "a.txt"}),)), limits=Limits(steps=2))
    assert played.result.status == "stopped"
    assert "limit: steps" in played.result.stop_reason
    assert played.result.steps == 3


async def test_an_image_that_is_not_there_fails_the_session_with_what_to_do(stage: Any) -> None:
    turn = Turn(calls=(ScriptedCall("Read", {"path": "a.txt"}),))
    played = await stage.play([turn, Turn("done")], image="no-such-image:ever")
    assert played.result.status == "failed"
    assert "no-such-image:ever" in played.result.stop_reason
    left = {path.name for path in Path(played.result.transcript).parent.iterdir()}
    assert left & {"work", "work.part", "base", "base.part", "disk", "disk.img"} == set(), "no box was ever in the copy"
