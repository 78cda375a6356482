"""Compaction: whatever the history and the room, the list stays valid, pairs whole, and the user's words in it."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.endpoint.reply import ModelReply, RawCall, Usage
from coordinator.errors import ContextTooLong
from coordinator.session import compaction
from coordinator.session.context import Context, keeper
from coordinator.session.events import Event, parse_event
from coordinator.session.history import History, validate
from coordinator.session.step_events import ContextCompacted
from coordinator.session.token_count import BYTES_PER_TOKEN, TokenCounter, by_bytes, tiktoken_count

SLACK = 100
"""Tokens by which the shortest summary of a model may be longer than a list of calls."""
WORDS = st.text(st.characters(codec="utf-8"), max_size=30)
SIZES = st.integers(0, 6_000)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any conversation: messages of a user, replies with and without calls, answers small and large."""
    history = History(draw(st.sampled_from(["", "Be good."])))
    history.add_user(f"task {draw(WORDS)}", "user")
    for step in range(draw(st.integers(0, 12))):
        match draw(st.sampled_from(["calls", "calls", "calls", "talk", "own"])):
            case "talk":
                _reply(history, f"said {step} {draw(WORDS)}", [])
                history.add_user(f"more {step} {draw(WORDS)}", "user")
            case "own":
                _reply(history, "cut off", [])
                history.add_user("Go on with a shorter reply.", "sandhog")
            case _:
                sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
                _reply(history, draw(WORDS), [f"c{step}.{at}" for at in range(len(sizes))])
                history.add_answers([_answer(draw, size) for size in sizes])
    return history


def _reply(history: History, text: str, ids: list[str]) -> None:
    calls = tuple(RawCall(at, call_id, "Bash", '{"command": "ls"}') for at, call_id in enumerate(ids))
    history.add_reply(ModelReply(text or "hm", calls, "tool_calls" if calls else "stop"), ids)


def _answer(draw: st.DrawFn, size: int) -> str:
    text = draw(st.sampled_from(["x", "é", "line\n", '"'])) * size
    if draw(st.booleans()):
        error = {"error": {"code": "NOT_FOUND", "message": "no"}} if draw(st.booleans()) else {}
        return json.dumps({"status": "success", "text": text, "data": {"a": 1}, **error}, ensure_ascii=False)
    return text or "(nothing)"


async def compacted(history: History, window: int, summary: str | None) -> list[Event]:
    events: list[Event] = []
    asked: list[list[dict[str, Any]]] = []

    async def summarise(messages: list[dict[str, Any]]) -> str | None:
        asked.append(messages)
        return summary

    context = Context(window, lambda text: f"/spill/{len(text)}.txt", TokenCounter(by_bytes), share=1.0, aim=0.6)
    await context.compact(history, [], 1, summarise, events.append)
    for messages in asked:
        validate(messages, for_request=True)
    return events


@settings(deadline=None, max_examples=100)
@given(histories(), st.integers(0, 12_000), st.sampled_from([None, "They did it.", "long"]))
async def test_any_history_in_any_window_stays_valid_whole_and_within_it(
    history: History, window: int, summary: str | None
) -> None:
    summary = "y" * 90_000 if summary == "long" else summary
    said = [str(one["content"]) for one in history.messages if one["role"] == "user"]
    said = [text for text in said if text != "Go on with a shorter reply."]
    whole = [dict(message) for message in history.messages]
    least = await _copy_compacted(history, 0, summary)
    events = await compacted(history, window, summary)

    if whole[-1]["role"] == "assistant":
        validate(history.messages)
    else:
        validate(history.messages, for_request=True)
    text = "\n".join(str(message["content"]) for message in history.messages if message["role"] == "user")
    at = -1
    for one in said:
        at = text.find(one, at + 1)
        assert at >= 0, "the user's words are there, in their order"
    assert _size(history.messages) <= max(window, least + SLACK)
    made: list[dict[str, Any]] = whole
    for event in events:
        assert isinstance(event, ContextCompacted)
        made = compaction.apply(made, parse_event(event.model_dump()))  # type: ignore[arg-type]
    assert made == history.messages, "the events alone give the same list"


async def _copy_compacted(history: History, window: int, summary: str | None) -> int:
    copy = History()
    copy._messages = [dict(message) for message in history.messages]
    copy.own_words = set(history.own_words)
    await compacted(copy, window, summary)
    return _size(copy.messages)


def _size(messages: list[dict[str, Any]]) -> int:
    counter = TokenCounter(by_bytes)
    return sum(counter.of_message(message) for message in messages)


def conversation(steps: int, size: int = 3_000) -> History:
    history = History("Be good.")
    history.add_user("mend it", "user")
    for step in range(steps):
        _reply(history, "", [f"c{step}"])
        history.add_answers([json.dumps({"status": "success", "text": f"{step} " + "x" * size})])
    return history


def _tools(history: History) -> list[dict[str, Any]]:
    return [json.loads(message["content"]) for message in history.messages if message["role"] == "tool"]


async def test_old_large_results_go_first_and_say_where_they_are() -> None:
    history = conversation(8)
    whole = _tools(history)
    (event,) = await compacted(history, _size(history.messages) - 1_500, "unused")
    assert isinstance(event, ContextCompacted)
    assert event.removed == 0
    assert event.tokens_after < event.tokens_before
    found = _tools(history)
    shortened = [at for at, one in enumerate(found) if one != whole[at]]
    assert shortened == list(range(len(shortened)))
    assert found[0]["status"] == "success"
    assert found[0]["text"] == "[3002 bytes left out to save room; all of it: /spill/3002.txt]"
    assert found[-1] == whole[-1]


async def test_a_second_summary_takes_the_first_ones_place_and_keeps_its_requests() -> None:
    history = conversation(12)
    await compacted(history, 2_400, "First.")
    history.add_user("and test it", "user")
    for step in range(12):
        _reply(history, "", [f"d{step}"])
        history.add_answers(["y" * 3_000])
    await compacted(history, 2_400, "Second.")
    note = history.messages[1]["content"]
    assert note.index("1. mend it") < note.index("2. and test it") < note.index("Second.")
    assert "First." not in note
    assert sum("was summarised" in str(message["content"]) for message in history.messages) == 1


async def test_one_long_turn_is_compacted_and_what_the_model_has_not_seen_is_cut_last() -> None:
    history = conversation(1, size=60_000)
    events = await compacted(history, 2_000, "unused")
    assert [event.removed for event in events if isinstance(event, ContextCompacted)] == [0]
    (answer,) = _tools(history)
    assert answer["text"].startswith("0 xxx")
    assert "all of it: /spill/60002.txt" in answer["text"]
    assert _size(history.messages) <= 2_000


async def test_without_a_models_summary_the_calls_are_listed() -> None:
    history = conversation(12)
    await compacted(history, 2_400, None)
    assert '- Bash {"command": "ls"}: success' in history.messages[1]["content"]


async def test_a_window_is_learned_from_what_the_endpoint_says() -> None:
    history, context = conversation(6), Context(counter=TokenCounter(by_bytes))
    assert not context.is_tight(history, [])
    context.learn(ContextTooLong("too long", limit_tokens=20_000), history, [])
    assert context.window_tokens == 20_000
    assert context.is_tight(history, []), "the endpoint counts more than bytes say"
    unsaid = Context(counter=TokenCounter(by_bytes))
    unsaid.learn(ContextTooLong("too long"), history, [])
    assert unsaid.window_tokens is not None
    assert unsaid.window_tokens < _size(history.messages)


def test_a_text_is_kept_once_where_the_box_shows_it(tmp_path: Path) -> None:
    keep = keeper(tmp_path)
    path = keep("long text\udc80")
    assert path == keep("long text\udc80")
    (kept,) = tmp_path.iterdir()
    assert path == f"/spill/{kept.name}"
    assert kept.read_text() == "long text?"
    assert kept.stat().st_mode & 0o777 == 0o644
    assert keeper(tmp_path / "missing")("text") is None


def test_a_list_with_lost_lines_stays_valid() -> None:
    history = conversation(3)
    done = ContextCompacted(
        step=3, tokens_before=9, tokens_after=1, counted_by="bytes", removed=2, requests=("mend it",), summary="Some."
    )
    validate(compaction.apply(history.messages, done))


def test_a_count_takes_the_endpoints_word_and_reckons_the_rest() -> None:
    history, counter = conversation(2), TokenCounter(by_bytes)
    sources = [counter.source]
    counter.measured(history.messages, [], Usage(prompt_tokens=5_000))
    assert [*sources, counter.source] == ["bytes", "endpoint"]
    assert counter.of(history.messages, []) == 5_000
    history.add_user("x" * 300, "user")
    assert 5_000 + 300 / BYTES_PER_TOKEN < counter.of(history.messages, []) < 5_600


def test_tiktoken_counts_only_where_its_encoding_lies_whole(tmp_path: Path) -> None:
    assert tiktoken_count({}) is None
    assert tiktoken_count({"TIKTOKEN_CACHE_DIR": str(tmp_path / "missing")}) is None
    # As tiktoken names the file of cl100k_base; it would fetch a spoilt one anew, and must not be asked.
    spoilt = tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    spoilt.write_text("spoilt")
    assert tiktoken_count({"TIKTOKEN_CACHE_DIR": str(tmp_path)}) is None
    assert spoilt.read_text() == "spoilt"
