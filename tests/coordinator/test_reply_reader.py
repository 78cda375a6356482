"""Replies out of bytes, streamed or whole, as endpoints and proxies really send them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.reply_reader import ReplyReader
from coordinator.errors import ContextTooLong, ModelRefused, ModelUnavailable, ReplyBroken


def read(*pieces: bytes) -> tuple[ModelReply, list[str]]:
    shown: list[str] = []
    reader = ReplyReader(shown.append)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish(), shown


def event(finish: str | None = None, **delta: Any) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def body(finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


DONE = b"data: [DONE]\n\n"
CALL = {"index": 0, "id": "a", "function": {"name": "Read", "arguments": '{"path": "x"}'}}


def test_a_body_is_a_body_and_a_stream_a_stream_whatever_was_asked_for() -> None:
    whole = json.dumps(body(content="hé")).encode()
    for start in (b"", b"\n\n  ", b"\xef\xbb\xbf"):
        assert read(start + whole)[0].text == "hé"
        assert read(start, whole)[0].text == "hé"
    for start in (b"", b": ping\n\n", b"\n\n", b"event: message\n", b"\xef\xbb\xbf"):
        assert read(start + event("stop", content="hé"))[0].text == "hé"


def test_an_old_function_call_is_a_call_streamed_or_not() -> None:
    call = {"name": "Read", "arguments": '{"path": "x"}'}
    whole, _ = read(json.dumps(body("function_call", content=None, function_call=call)).encode())
    streamed, _ = read(
        event(role="assistant", function_call={"name": "Read", "arguments": '{"pa'}),
        event(function_call={"arguments": 'th": "x"}'}),
        event("function_call"),
        DONE,
    )
    assert whole == streamed
    assert [(c.id, c.name, c.arguments) for c in whole.calls] == [(None, "Read", '{"path": "x"}')]
    assert whole.finish_reason == "tool_calls"
    assert whole.raw_message["function_call"] == call
    assert whole.raw["choices"][0]["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("said", "branch"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("eos_token", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("safety", "content_filter"),
        ("tool_use", "tool_calls"),
        ("something_new", "something_new"),
    ],
)
def test_the_words_for_an_end_are_four_and_the_endpoints_own_is_kept(said: str, branch: str) -> None:
    reply, _ = read(event(said, content="x"))
    assert reply.finish_reason == branch
    assert reply.raw["choices"][0]["finish_reason"] == said


def test_stop_with_calls_has_its_calls_and_tool_calls_without_has_none() -> None:
    assert [call.name for call in read(event("stop", tool_calls=[CALL]))[0].calls] == ["Read"]
    assert read(event("tool_calls", content="x"))[0].calls == ()


def test_an_empty_list_of_calls_is_none() -> None:
    for sent in (event("stop", content="x", tool_calls=[]), json.dumps(body(content="x", tool_calls=[])).encode()):
        reply, _ = read(sent)
        assert (reply.text, reply.calls, reply.finish_reason) == ("x", (), "stop")


def test_a_stream_that_says_that_it_is_over_needs_no_finish_reason() -> None:
    reply, _ = read(event(content="x"), DONE)
    assert (reply.text, reply.finish_reason) == ("x", "stop")
    reply, _ = read(event(tool_calls=[CALL]), DONE)
    assert (len(reply.calls), reply.finish_reason) == (1, "tool_calls")
    reply, _ = read(json.dumps(body(None, content="x")).encode())
    assert (reply.text, reply.finish_reason) == ("x", "stop")


@pytest.mark.parametrize(
    "stream",
    [
        event(content="half"),
        event(tool_calls=[CALL]),
        event(tool_calls=[{**CALL, "function": {"name": "Read", "arguments": '{"pa'}}]) + DONE,
        event("error", content="x"),
        event("abort", content="x"),
        json.dumps(body(content="x")).encode()[:-5],
        DONE,
        b"",
        b"\n\n",
        b"<html>",
    ],
)
def test_what_is_cut_or_broken_off_is_no_reply(stream: bytes) -> None:
    with pytest.raises(ReplyBroken):
        read(stream)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b'data: {"error": {"message": "worker died", "code": 502}}\n\n', ModelUnavailable),
        (b'data: {"object": "error", "message": "no such model", "code": 404}\n\n', ModelRefused),
        (b'{"error": {"message": "no", "type": "invalid_request_error"}}', ModelRefused),
        (b'[{"error": {"message": "no", "code": 400, "status": "INVALID_ARGUMENT"}}]', ModelRefused),
        (b'event: error\ndata: {"error": {"message": "prompt is too long: 9 tokens > 5 maximum"}}\n\n', ContextTooLong),
    ],
)
def test_an_error_in_place_of_a_reply_is_sorted_and_kept(sent: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        read(event(content="x") if sent.startswith((b"data", b"event")) else b"", sent)
    assert isinstance(caught.value, ModelUnavailable | ModelRefused | ContextTooLong)
    assert "message" in caught.value.body


def test_what_follows_the_end_does_not_matter() -> None:
    assert read(event("stop", content="x"), DONE, b"data: {nonsense\n\n")[0].text == "x"
    assert read(event("stop", content="x"), b"data: {half")[0].text == "x"


def test_text_is_shown_once_and_whole() -> None:
    assert read(event(content="a"), event(content="b"), event("stop"))[1] == ["a", "b"]
    assert read(json.dumps(body(content="ab")).encode())[1] == ["ab"]


def test_a_reply_beyond_all_bounds_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.endpoint.reply_reader.MAX_REPLY_BYTES", 100)
    with pytest.raises(ReplyBroken, match="more than 100 bytes"):
        read(b": ping\n" * 20)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=100, deadline=None)
@given(_texts, _texts, st.booleans(), st.booleans(), st.data())
def test_bytes_cut_anywhere_are_the_same_reply(
    text: str, argument: str, is_streamed: bool, is_ascii: bool, data: st.DataObject
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "Read", "arguments": json.dumps({"path": argument})}}
    expected, _ = read(json.dumps(body("tool_calls", content=text or None, tool_calls=[call])).encode())
    if is_streamed:
        chunks = [{"role": "assistant", "content": text[:3] or None}, {"content": text[3:]}]
        chunks.append({"tool_calls": [{"index": 0, **call}]})
        choices = [{"index": 0, "delta": chunk, "finish_reason": None} for chunk in chunks]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
        lines = [json.dumps({"choices": [choice]}, ensure_ascii=is_ascii) for choice in choices]
        sent = "".join(f"data: {line}\r\n\r\n" for line in [*lines, "[DONE]"]).encode()
    else:
        whole = body("tool_calls", content=text or None, tool_calls=[call])
        sent = json.dumps(whole, ensure_ascii=is_ascii).encode()
    places = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]
    reply, shown = read(*pieces)
    assert (reply.text, reply.calls, reply.finish_reason) == (expected.text, expected.calls, expected.finish_reason)
    assert "".join(shown) == text
