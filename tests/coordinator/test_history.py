"""Message lists that a strict endpoint takes, and those it does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.endpoint.reply import ModelReply, RawCall
from coordinator.errors import HistoryInvalid
from coordinator.session.history import History, settle_ids, validate

USER = {"role": "user", "content": "go"}


def call(call_id: str = "a", name: str = "Read", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answers(call_id: str = "a", content: Any = "{}") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def reply(text: str = "", *calls: RawCall, refusal: str | None = None) -> ModelReply:
    return ModelReply(text, calls, "tool_calls" if calls else "stop", refusal=refusal)


def test_text_beside_calls_is_kept_and_ids_are_echoed_exactly() -> None:
    history = History("be brief")
    history.add_user("go")
    ids = history.add_reply(reply("I look.", RawCall(0, "weird id/1", "Read", '{"path": "x"}')))
    history.add_answers(["{}"])
    assert ids == ("weird id/1",)
    assert history.messages == [
        {"role": "system", "content": "be brief"},
        USER,
        asks(call("weird id/1", arguments='{"path": "x"}'), content="I look."),
        answers("weird id/1"),
    ]
    validate(history.messages, for_request=True)


def test_ids_are_made_up_only_where_they_are_missing() -> None:
    calls = (RawCall(0, None, "Read", "{}"), RawCall(1, "call_3_0", "Read", "{}"), RawCall(2, None, "Read", "{}"))
    assert settle_ids(calls, 3) == ("call_3_0x", "call_3_0", "call_3_2")


def test_made_up_ids_differ_from_step_to_step() -> None:
    history = History()
    history.add_user("go")
    first = history.add_reply(reply("", RawCall(0, None, "Read", "{}")))
    history.add_answers(["{}"])
    second = history.add_reply(reply("", RawCall(0, None, "Read", "{}")))
    assert first != second


def test_two_calls_with_one_id_have_one_answer_each() -> None:
    history = History()
    history.add_user("go")
    assert history.add_reply(reply("", RawCall(0, "a", "Read", "{}"), RawCall(1, "a", "Grep", "{}"))) == ("a", "a")
    history.add_answers(["1", "2"])
    validate(history.messages, for_request=True)
    assert [message["content"] for message in history.messages[-2:]] == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "echoed"), [("", "{}"), (None, "{}"), ({"p": "é"}, '{"p": "é"}'), ("{", "{"), ("[1]", "[1]")]
)
def test_arguments_are_echoed_as_text(arguments: Any, echoed: str) -> None:
    history = History()
    history.add_user("go")
    history.add_reply(reply("", RawCall(0, "a", "Read", arguments)))
    assert history.messages[-1]["tool_calls"][0]["function"]["arguments"] == echoed


@pytest.mark.parametrize(
    ("name", "echoed"), [("functions.Read", "functions_Read"), ("", "unnamed"), ("x" * 99, "x" * 64)]
)
def test_a_name_that_endpoints_refuse_is_made_harmless(name: str, echoed: str) -> None:
    history = History()
    history.add_user("go")
    history.add_reply(reply("", RawCall(0, "a", name, "{}")))
    assert history.messages[-1]["tool_calls"][0]["function"]["name"] == echoed


def test_a_refusal_without_text_is_the_content() -> None:
    history = History()
    history.add_user("go")
    history.add_reply(reply(refusal="no"))
    assert history.messages[-1] == {"role": "assistant", "content": "no"}


def test_nothing_can_come_between_calls_and_their_answers() -> None:
    history = History()
    history.add_user("go")
    history.add_reply(reply("", RawCall(0, "a", "Read", "{}")))
    assert list(history.unanswered) == ["a"]
    with pytest.raises(HistoryInvalid):
        history.add_user("wait")
    with pytest.raises(HistoryInvalid):
        history.add_reply(reply("x"))
    with pytest.raises(HistoryInvalid):
        history.add_answers([])
    with pytest.raises(HistoryInvalid):
        history.add_answers(["1", "2"])
    history.add_answers(["1"])
    assert not history.unanswered
    validate(history.messages)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "not empty"),
        ("hello", "list"),
        (["hello"], "not an object"),
        ([{"role": "robot", "content": "x"}], "unknown role"),
        ([{"role": "user", "content": ""}], "empty"),
        ([{"role": "user", "content": None}], "neither"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
        ([USER, {"role": "system", "content": "x"}], "after the beginning"),
        ([USER, answers()], "no call right before it"),
        ([USER, asks(call())], "no answer"),
        ([USER, asks(call()), USER], "no answer yet"),
        ([USER, asks(call("a"), call("b")), answers("a")], "no answer"),
        ([USER, asks(call("a"), call("b")), answers("b"), answers("a")], "next open call"),
        ([USER, asks(call("a")), answers("a"), answers("a")], "no call right before it"),
        ([USER, asks(call("a")), answers("b")], "next open call"),
        ([USER, asks(call("a")), answers("a", content=None)], "neither"),
        ([USER, asks()], "not empty"),
        ([USER, {"role": "assistant", "content": None}], "neither"),
        ([USER, asks(call(""))], "no id"),
        ([USER, asks(call(name="a b"))], "bad name"),
        ([USER, asks(call(arguments={}))], "not a string"),
        ([USER, asks({"id": "a", "function": {"name": "Read", "arguments": "{}"}})], "type function"),
    ],
)
def test_a_list_that_breaks_the_protocol_is_named(messages: Any, fault: str) -> None:
    with pytest.raises(HistoryInvalid, match=fault):
        validate(messages)


def test_a_request_must_end_with_something_to_answer() -> None:
    messages = [USER, {"role": "assistant", "content": "done"}]
    validate(messages)
    with pytest.raises(HistoryInvalid, match="nothing for the model"):
        validate(messages, for_request=True)


_arguments = st.one_of(st.none(), st.text(), st.dictionaries(st.text(), st.integers(), max_size=2))
_calls = st.lists(st.tuples(st.one_of(st.none(), st.just(""), st.text(max_size=3)), st.text(), _arguments), max_size=4)


@given(st.lists(st.tuples(st.text(), _calls), max_size=5), st.text(min_size=1))
def test_whatever_the_model_says_the_history_is_valid(replies: list[tuple[str, list[Any]]], words: str) -> None:
    history = History("system")
    history.add_user(words)
    for text, calls in replies:
        raw = (RawCall(index, call_id or None, name, given) for index, (call_id, name, given) in enumerate(calls))
        history.add_answers([words] * len(history.add_reply(reply(text, *raw))))
    validate(history.messages)
    json.dumps(history.messages, ensure_ascii=False).encode()
