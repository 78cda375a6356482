"""The model loop where replies come oddly: calls written as text, failed requests, model parameters."""

import json
from typing import Any

import pytest

from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.endpoint.written_calls import WrittenCall
from coordinator.session.call_events import CallFinished
from coordinator.session.limits import Limits
from coordinator.session.loop import Ending
from coordinator.session.step_events import CallsWritten, ModelReplied, RequestFailed
from coordinator.session.written import STOP_REASON, correction, written_in
from tests.coordinator.test_loop import Play, look, play, steps

__all__ = ["play"]

WRITTEN = Turn('<tool_call>\n{"name": "Look", "arguments": {"at": "x"}}\n</tool_call>')
FENCED = Turn('I look.\n\n```json\n{"name": "Look", "arguments": {"at": "x"}}\n```')


async def test_a_call_that_came_as_text_is_corrected_once_and_never_run(play: Play) -> None:
    played = await play(steps(WRITTEN, look(), Turn("done")))
    assert played.ending == Ending("completed", "done", "done")
    assert [(event.names, event.form, event.is_last) for event in played.of(CallsWritten)] == [
        (("Look",), "tags", False)
    ]
    assert len(played.of(CallFinished)) == 1
    said, told = played.requests[1]["messages"][-2:]
    assert said == {"role": "assistant", "content": WRITTEN.text}
    assert told["role"] == "user"
    assert "call of Look" in told["content"]


async def test_a_model_that_goes_on_so_ends_the_session_without_an_answer(play: Play) -> None:
    played = await play(steps(WRITTEN, FENCED))
    assert played.ending == Ending("stopped", STOP_REASON, "")
    assert [event.is_last for event in played.of(CallsWritten)] == [False, True]
    assert len(played.requests) == 2


async def test_a_call_that_was_made_starts_the_count_anew(play: Play) -> None:
    played = await play(steps(WRITTEN, look("a"), FENCED, look("b"), Turn("done")))
    assert played.ending.status == "completed"
    assert [event.is_last for event in played.of(CallsWritten)] == [False, False]


async def test_a_reply_that_only_says_that_it_calls_is_no_answer(play: Play) -> None:
    played = await play(steps(Turn("I call Look now.", finish_reason="tool_calls"), Turn("done")))
    assert played.ending.text == "done"
    assert [event.form for event in played.of(CallsWritten)] == ["announced"]


async def test_an_answer_that_shows_a_call_is_an_answer(play: Play) -> None:
    shown = f"{FENCED.text}\nis how a call of Look is written."
    assert (await play([Turn(shown)])).ending == Ending("completed", "done", shown)


async def test_what_stops_at_a_limit_is_not_summed_up_by_a_written_call(play: Play) -> None:
    def script(messages: list[dict[str, Any]]) -> Turn:
        return WRITTEN if "Sum up" in str(messages[-1]["content"]) else look(str(len(messages)))

    played = await play(script, Limits(steps=2))
    assert played.ending.status == "stopped"
    assert played.ending.text == ""


async def test_calls_run_whatever_the_finish_reason_says(play: Play) -> None:
    calls = (ScriptedCall("Look", {"at": "x"}),)
    turns = [Turn(calls=calls, finish_reason=reason) for reason in ("stop", "function_call", "eos")]
    played = await play(steps(*turns, Turn("done", finish_reason="end_turn")))
    assert played.ending == Ending("completed", "done", "done")
    assert len(played.of(CallFinished)) == 3


async def test_an_endpoints_own_word_for_length_is_one(play: Play) -> None:
    played = await play(steps(Turn("half a", finish_reason="max_tokens"), Turn("the rest")))
    assert played.ending == Ending("completed", "done", "the rest")
    assert played.of(ModelReplied)[0].raw["choices"][0]["finish_reason"] == "max_tokens"


async def test_failed_requests_are_kept_with_what_the_endpoint_sent(play: Play) -> None:
    busy = Turn(status=500, error={"message": "worker died", "type": "server_error", "code": "dead"})
    refusal = Turn(status=403, error={"message": "not for you", "type": "permission_error", "code": None})
    played = await play(steps(Turn("", first=(busy,), calls=(ScriptedCall("Look", {"at": "x"}),)), refusal))
    assert played.ending.status == "failed"
    assert "not for you" in played.ending.stop_reason
    first, last = played.of(RequestFailed)
    assert (first.status, first.code, json.loads(first.body)["error"]["message"]) == (500, "dead", "worker died")
    assert first.next_try_s is not None
    assert (last.status, last.next_try_s) == (403, None)
    assert json.loads(last.body)["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (ModelReply("done", (), "stop"), ()),
        (ModelReply("I look.", (), "tool_calls"), (WrittenCall("", "announced"),)),
        (ModelReply("", (), "tool_calls"), ()),
        (ModelReply("Look(at='x')", (), "stop"), (WrittenCall("Look", "python"),)),
        (ModelReply("Look(at='x')", (), "stop", refusal="no"), ()),
    ],
)
def test_what_counts_as_a_written_call(reply: ModelReply, found: tuple[WrittenCall, ...]) -> None:
    assert written_in(reply, [{"type": "function", "function": {"name": "Look"}}]) == found


def test_the_model_is_told_which_tools_and_how() -> None:
    assert "call of Read, a tool" not in correction([WrittenCall("", "tags")])
    words = correction([WrittenCall("Read", "tags"), WrittenCall("Read", "tags"), WrittenCall("Bash", "tags")])
    assert "a call of Read, Bash into its text" in words
    assert "no call came with it" in correction([WrittenCall("", "announced")])
