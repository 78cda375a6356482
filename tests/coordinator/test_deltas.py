"""Streamed replies against the unstreamed ones they stand for."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.endpoint.deltas import ReplyGatherer, gather_unstreamed, parse_chunk
from coordinator.endpoint.reply import ModelReply, RawCall, Usage
from coordinator.endpoint.sse import SseDecoder
from coordinator.errors import ModelRefused, ModelUnavailable, ReplyBroken


def gathered(*chunks: dict[str, Any]) -> ModelReply:
    gatherer = ReplyGatherer()
    for chunk in chunks:
        gatherer.add(chunk)
    return gatherer.finish()


def delta(*, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def calls_of(*fragments: dict[str, Any]) -> list[tuple[str | None, str, Any]]:
    """The calls that fragments, one a chunk, add up to."""
    reply = gathered(*(delta(tool_calls=[fragment]) for fragment in fragments), delta(finish="tool_calls"))
    assert [call.index for call in reply.calls] == list(range(len(reply.calls)))
    return [(call.id, call.name, call.arguments) for call in reply.calls]


def fragment(index: int | None = None, call_id: str | None = None, **function: Any) -> dict[str, Any]:
    head: dict[str, Any] = {} if index is None else {"index": index}
    if call_id is not None:
        head["id"] = call_id
    return {**head, "function": function}


def test_an_id_that_comes_only_in_the_first_delta_belongs_to_the_whole_call() -> None:
    assert calls_of(
        fragment(0, "a", name="Read", arguments=""),
        fragment(0, arguments='{"path"'),
        fragment(0, arguments=': "x"}'),
    ) == [("a", "Read", '{"path": "x"}')]


def test_interleaved_indexes_come_out_whole_and_in_order() -> None:
    assert calls_of(
        fragment(1, "b", name="Grep", arguments='{"pattern"'),
        fragment(0, "a", name="Read", arguments='{"path"'),
        fragment(1, arguments=': "y"}'),
        fragment(0, arguments=': "x"}'),
    ) == [("a", "Read", '{"path": "x"}'), ("b", "Grep", '{"pattern": "y"}')]


def test_two_calls_with_one_index_and_different_ids_are_two_calls() -> None:
    assert calls_of(
        fragment(0, "a", name="Read", arguments='{"path": '),
        fragment(0, arguments='"x"}'),
        fragment(0, "b", name="Read", arguments=""),
        fragment(0, arguments='{"path": "y"}'),
    ) == [("a", "Read", '{"path": "x"}'), ("b", "Read", '{"path": "y"}')]


def test_two_whole_calls_with_one_index_and_no_ids_are_two_calls() -> None:
    assert calls_of(
        fragment(0, "", name="Read", arguments='{"path": "x"}'),
        fragment(0, "", name="Read", arguments='{"path": "y"}'),
    ) == [(None, "Read", '{"path": "x"}'), (None, "Read", '{"path": "y"}')]


def test_calls_without_an_index_are_told_apart_by_id_and_name() -> None:
    assert calls_of(
        fragment(None, "a", name="Read", arguments='{"path": '),
        fragment(None, None, arguments='"x"}'),
        fragment(None, "b", name="Grep", arguments='{"pattern": '),
        fragment(None, None, arguments='"y"}'),
        fragment(None, None, name="Pwd", arguments=""),
        fragment(None, None, name="Date", arguments=""),
    ) == [
        ("a", "Read", '{"path": "x"}'),
        ("b", "Grep", '{"pattern": "y"}'),
        (None, "Pwd", ""),
        (None, "Date", ""),
    ]


def test_two_entries_of_one_delta_without_an_index_are_two_calls() -> None:
    entries = [fragment(None, None, name="Pwd", arguments="") for _ in range(2)]
    reply = gathered(delta(tool_calls=entries, finish="tool_calls"))
    assert [call.name for call in reply.calls] == ["Pwd", "Pwd"]


def test_an_id_made_anew_for_every_delta_does_not_split_a_call() -> None:
    assert calls_of(
        fragment(0, "a1", name="Read", arguments='{"pa'),
        fragment(0, "a2", arguments='th": "x"}'),
    ) == [("a1", "Read", '{"path": "x"}')]


def test_id_and_name_repeated_in_every_delta_do_not_split_a_call() -> None:
    assert calls_of(
        fragment(0, "a", name="Read", arguments='{"pa'),
        fragment(0, "a", name="Read", arguments='th": "x"}'),
    ) == [("a", "Read", '{"path": "x"}')]


def test_the_same_id_at_two_indexes_stays_two_calls() -> None:
    assert calls_of(
        fragment(0, "a", name="Read", arguments="{}"),
        fragment(1, "a", name="Read", arguments="{}"),
    ) == [("a", "Read", "{}"), ("a", "Read", "{}")]


def test_arguments_may_be_empty_missing_or_an_object() -> None:
    assert calls_of(
        fragment(0, "a", name="Pwd", arguments=""),
        fragment(1, "b", name="Pwd"),
        fragment(2, "c", name="Read", arguments={"path": "x"}),
        {"index": 3, "id": "d", "name": "Read", "arguments": '{"path": "y"}'},
    ) == [
        ("a", "Pwd", ""),
        ("b", "Pwd", None),
        ("c", "Read", {"path": "x"}),
        ("d", "Read", '{"path": "y"}'),
    ]


def test_empty_deltas_and_empty_fragments_add_nothing() -> None:
    reply = gathered(
        delta(role="assistant", content=None, tool_calls=None),
        delta(),
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": []},
        {"choices": None},
        delta(tool_calls=[{"index": 0}]),
        delta(content="hi", finish=""),
        delta(finish="stop"),
    )
    assert (reply.text, reply.calls, reply.finish_reason) == ("hi", (), "stop")


def test_of_several_choices_the_first_counts() -> None:
    def choice(index: int, text: str) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": "stop"}

    assert gathered({"choices": [choice(1, "no"), choice(0, "yes")]}).text == "yes"


@pytest.mark.parametrize(
    "chunks",
    [
        [delta(content="x", finish="stop"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}],
        [{"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}]}],
        [{**delta(finish="stop"), "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}],
    ],
)
def test_usage_counts_wherever_it_stands(chunks: list[dict[str, Any]]) -> None:
    assert gathered(*chunks).usage == Usage(3, 4, 7)


def test_usage_may_be_absent() -> None:
    assert gathered(delta(content="x", finish="stop")).usage is None


def test_content_as_parts_is_their_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "…"}, {"type": "text", "text": "b"}]
    reply = gathered(delta(content=parts), delta(content=[{"type": "refusal", "refusal": "no"}], finish="stop"))
    assert (reply.text, reply.refusal) == ("ab", "no")
    assert reply.raw_message["content_parts"] == [parts[1]]


def test_a_refusal_is_gathered() -> None:
    assert gathered(delta(refusal="I can"), delta(refusal="not"), delta(finish="stop")).refusal == "I cannot"


def test_unknown_fields_are_kept_whole() -> None:
    reply = gathered(
        {"id": "x", "system_fingerprint": "f", **delta(role="assistant", reasoning_content="let ")},
        {"id": "x", **delta(role="assistant", reasoning_content="me", extra={"a": 1})},
        delta(tool_calls=[{"index": 0, "id": "a", "extra_content": {"sig": "s"}, "function": {"name": "Read"}}]),
        delta(finish="tool_calls", extra={"b": 2}),
    )
    message = reply.raw_message
    assert message["role"] == "assistant"
    assert message["reasoning_content"] == "let me"
    assert message["extra"] == {"a": 1, "b": 2}
    assert message["tool_calls"][0]["extra_content"] == {"sig": "s"}
    assert reply.raw["system_fingerprint"] == "f"


def test_a_long_train_of_thought_costs_no_more_than_its_length() -> None:
    began = time.thread_time()
    thoughts = [delta(reasoning_content="thought " * 4, logprobs=[1]) for _ in range(50_000)]
    reply = gathered(*thoughts, delta(finish="stop"))
    assert len(reply.raw_message["reasoning_content"]) == 50_000 * 32
    assert len(reply.raw_message["logprobs"]) == 50_000
    assert time.thread_time() - began < 5


def test_what_was_gathered_from_is_left_as_it_was() -> None:
    first, second = delta(extra={"a": [1]}, list=[1]), delta(extra={"a": [2]}, list=[2], finish="stop")
    before = json.dumps(first)
    assert gathered(first, second).raw_message["extra"] == {"a": [1, 2]}
    assert json.dumps(first) == before


def test_a_stream_without_a_finish_reason_is_broken() -> None:
    with pytest.raises(ReplyBroken, match="cut half-way"):
        gathered(delta(content="half a"))


def test_a_whole_message_at_the_end_is_not_taken_twice() -> None:
    last = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "hi"}}]}
    assert gathered(delta(content="hi"), last).text == "hi"


def test_half_a_surrogate_pair_waits_for_its_other_half() -> None:
    gatherer = ReplyGatherer()
    shown = [gatherer.add(parse_chunk(json.dumps(delta(content=half)))) for half in ("a\ud83d", "\ude00b", "\ud83d")]
    gatherer.add(delta(finish="stop"))
    assert shown == ["a", "😀b", ""]
    assert gatherer.finish().text == "a😀b�"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("<html>", ReplyBroken),
        ("[1]", ReplyBroken),
        ("[" * 100_000, ReplyBroken),
        ('{"error": {"message": "overloaded", "code": 502}}', ModelUnavailable),
        ('{"error": "sorry"}', ModelUnavailable),
        ('{"error": {"message": "no", "code": 400}}', ModelRefused),
        ('{"error": {"message": "no", "type": "invalid_request_error"}}', ModelRefused),
    ],
)
def test_what_is_no_chunk_is_an_error(data: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        parse_chunk(data)


def test_what_json_does_not_have_becomes_null() -> None:
    assert parse_chunk('{"logprob": -Infinity}') == {"logprob": None}


def test_each_call_of_an_unstreamed_message_is_its_own() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "Read", "arguments": "{}"}}] * 2
    body = {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"content": "t", "tool_calls": calls}}]}
    reply = gather_unstreamed(body)
    assert reply.calls == (RawCall(0, "a", "Read", "{}"), RawCall(1, "a", "Read", "{}"))
    assert reply.text == "t"


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"delta": {}}]}, {"detail": "?"}])
def test_a_body_that_is_no_completion_is_broken(body: dict[str, Any]) -> None:
    with pytest.raises(ReplyBroken):
        gather_unstreamed(body)


# --- the same reply, streamed in any way ---

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_names = st.text("abcXYZ_", min_size=1, max_size=8)
_arguments = st.one_of(
    st.dictionaries(_names, st.one_of(_texts, st.integers(), st.none()), max_size=3).map(json.dumps),
    st.dictionaries(_names, _texts, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.just(""),
    _texts,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """An unstreamed reply with its fields in the order the gatherer writes them."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(_texts) or None}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(_texts)
    if refusal := draw(st.one_of(st.just(""), _texts)):
        message["refusal"] = refusal
    calls = draw(st.lists(st.tuples(_names, _arguments), max_size=4))
    if calls:
        message["tool_calls"] = [
            {"id": f"id{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    finish_reason = draw(st.sampled_from(["stop", "tool_calls", "length"]))
    usage = draw(st.one_of(st.none(), st.just({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})))
    choice = {"index": 0, "finish_reason": finish_reason, "message": message}
    return {"id": "r", "model": "m", "object": "chat.completion", "choices": [choice], "usage": usage}


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], bytes, list[int]]:
    """A body, one of its streams as bytes, and where the socket cuts it."""
    body = draw(bodies())
    message = body["choices"][0]["message"]
    tracks: list[list[dict[str, Any]]] = []
    for name in ("content", "reasoning_content", "refusal"):
        if message.get(name):
            tracks.append([{name: piece} for piece in draw(cut(message[name]))])
    for index, call in enumerate(message.get("tool_calls", ())):
        first, *rest = draw(cut(call["function"]["arguments"]))
        head = {"index": index, "id": call["id"], "type": "function"}
        pieces = [{**head, "function": {"name": call["function"]["name"], "arguments": first}}]
        pieces += [{"index": index, "function": {"arguments": piece}} for piece in rest]
        tracks.append([{"tool_calls": [piece]} for piece in pieces])
    deltas = [{"role": "assistant", "reasoning_content": ""} if "reasoning_content" in message else {}]
    while remaining := [track for track in tracks if track]:
        deltas.append(draw(st.sampled_from(remaining)).pop(0))
    chunks = [{"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": body["choices"][0]["finish_reason"]}]})
    if body["usage"]:
        chunks.append({"choices": [], "usage": body["usage"]})
    written = draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    ends = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = [
        f": ping{ends}{ends}data: {json.dumps({'id': 'r', 'model': 'm', **chunk}, ensure_ascii=is_ascii)}{ends}{ends}"
        for chunk, is_ascii in zip(chunks, written, strict=True)
    ]
    stream = "".join([*events, f"data: [DONE]{ends}{ends}" if draw(st.booleans()) else ""]).encode()
    return body, stream, sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))


@settings(max_examples=100, deadline=None)
@given(streams())
def test_any_stream_of_a_reply_equals_the_unstreamed_reply(case: tuple[dict[str, Any], bytes, list[int]]) -> None:
    body, stream, places = case
    decoder, gatherer = SseDecoder(), ReplyGatherer()
    shown = ""
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        for data in decoder.feed(stream[start:end]):
            shown += gatherer.add(parse_chunk(data)) if data != "[DONE]" else ""
    for data in decoder.close():
        shown += gatherer.add(parse_chunk(data)) if data != "[DONE]" else ""

    streamed, unstreamed = gatherer.finish(), gather_unstreamed(body)

    assert streamed == unstreamed
    assert shown == unstreamed.text
    assert unstreamed.raw == body
