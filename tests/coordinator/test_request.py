"""Requests as endpoints want them: parameters, quirks, and what goes back of earlier replies."""

from dataclasses import asdict
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.endpoint.parameters import ModelParameters
from coordinator.endpoint.quirks import Quirks, quirks_of
from coordinator.endpoint.reply import ModelReply, RawCall
from coordinator.endpoint.request import request_body
from coordinator.errors import ConfigError
from coordinator.session.history import History, validate

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("Read", "Bash")]
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
NAMED = {"type": "function", "function": {"name": "Read"}}


def body(
    quirks: Quirks | None = None, *, tools: list[dict[str, Any]] = TOOLS, is_first: bool = False, **fields: Any
) -> dict[str, Any]:
    return request_body(
        "m", MESSAGES, tools, ModelParameters(**fields), quirks or Quirks(), stream=False, is_first=is_first
    )


def test_nothing_is_said_that_nobody_asked_for() -> None:
    assert body() == {"model": "m", "messages": MESSAGES, "tools": TOOLS}


def test_every_parameter_has_its_field() -> None:
    made = body(
        temperature=0,
        top_p=0.5,
        max_tokens=9,
        reasoning_effort="low",
        seed=3,
        stop=("END",),
        parallel_tool_calls=False,
        extra_body={"top_k": 40},
    )
    assert {name: made[name] for name in made if name not in ("model", "messages", "tools")} == {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 9,
        "reasoning_effort": "low",
        "seed": 3,
        "stop": ["END"],
        "parallel_tool_calls": False,
        "top_k": 40,
    }


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", "auto"), ("none", "none"), ("required", "required"), ("Read", NAMED)]
)
def test_a_tool_choice_is_a_word_or_a_tool(choice: str, sent: Any) -> None:
    assert body(tool_choice=choice)["tool_choice"] == sent


def test_the_first_reply_may_have_a_choice_of_its_own() -> None:
    fields: dict[str, Any] = {"tool_choice": "auto", "first_tool_choice": "Read"}
    assert body(is_first=True, **fields)["tool_choice"] == NAMED
    assert body(is_first=False, **fields)["tool_choice"] == "auto"
    assert "tool_choice" not in body(first_tool_choice="required")


def test_a_tool_that_is_not_shown_is_not_chosen() -> None:
    assert "tool_choice" not in body(tool_choice="Grep")


def test_without_tools_nothing_is_said_of_them() -> None:
    made = body(tools=[], tool_choice="required", parallel_tool_calls=False)
    assert set(made) == {"model", "messages"}


def test_quirks_change_names_and_leave_fields_out() -> None:
    quirks = Quirks(
        max_tokens_name="max_completion_tokens",
        seed_name="random_seed",
        required_word="any",
        named_tool_choice=False,
        parallel_tool_calls=False,
        stream_options=False,
        system_role="developer",
    )
    fields = ModelParameters(max_tokens=5, seed=1, tool_choice="Read", parallel_tool_calls=False)
    made = request_body("m", MESSAGES, TOOLS, fields, quirks, stream=True)
    assert made == {
        "model": "m",
        "messages": [{"role": "developer", "content": "s"}, MESSAGES[1]],
        "tools": TOOLS,
        "stream": True,
        "max_completion_tokens": 5,
        "random_seed": 1,
        "tool_choice": "any",
    }
    assert "tool_choice" not in body(Quirks(tool_choice=False), tool_choice="none")


def with_reply(raw_message: dict[str, Any]) -> list[dict[str, Any]]:
    history = History("s")
    history.add_user("u")
    calls = tuple(RawCall(i, c["id"], "Read", "{}") for i, c in enumerate(raw_message["tool_calls"]))
    history.add_reply(ModelReply("", calls, "tool_calls", raw={"choices": [{"message": raw_message}]}))
    history.add_answers(["a"] * len(calls))
    validate(history.messages)
    return history.messages


RAW = {
    "reasoning_content": "let me think",
    "reasoning": "let me",
    "tool_calls": [{"id": "a", "extra_content": {"google": {"thought_signature": "s"}}}, {"id": "b"}],
}


def sent(messages: list[dict[str, Any]], quirks: Quirks) -> dict[str, Any]:
    before = repr(messages)
    made: dict[str, Any] = request_body("m", messages, TOOLS, ModelParameters(), quirks, stream=False)["messages"][2]
    assert repr(messages) == before
    return made


def test_thoughts_and_signatures_go_back_only_where_they_are_wanted() -> None:
    messages = with_reply(RAW)
    plain = sent(messages, Quirks())
    assert set(plain) == {"role", "content", "tool_calls"}
    assert all(set(call) == {"id", "type", "function"} for call in plain["tool_calls"])
    thinking = sent(messages, Quirks(echoed=("reasoning_content",)))
    assert thinking["reasoning_content"] == "let me think"
    assert "reasoning" not in thinking
    signed = sent(messages, Quirks(echoed=("extra_content",)))
    assert signed["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}
    assert "extra_content" not in signed["tool_calls"][1]
    assert "reasoning_content" not in signed


def test_an_echoed_field_is_sent_empty_where_that_is_wanted() -> None:
    messages = with_reply({"tool_calls": [{"id": "a"}]})
    assert sent(messages, Quirks(echoed=("reasoning_content",), echoes_empty=True))["reasoning_content"] == ""
    assert sent(messages, Quirks(null_content=False))["content"] == ""


@pytest.mark.parametrize(
    ("base_url", "model", "expected"),
    [
        (None, "gpt-5.5", {"max_tokens_name": "max_completion_tokens", "system_role": "developer"}),
        (None, "gpt-4.1", {"max_tokens_name": "max_completion_tokens", "system_role": "system"}),
        ("https://api.openai.com/v1", "o3-mini", {"parallel_tool_calls": False}),
        ("https://api.deepseek.com/v1", "any", {"echoed": ("reasoning_content",), "echoes_empty": True}),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-3", {"echoed": ("extra_content",)}),
        ("https://api.mistral.ai/v1", "any", {"stream_options": False, "required_word": "any"}),
        ("https://openrouter.ai/api/v1", "any", {"echoed": ("reasoning_details",)}),
        ("http://10.0.0.1:8000/v1", "qwen", {}),
        ("http://10.0.0.1:8000/v1", "openai/gpt-oss-120b", {"max_tokens_name": "max_tokens"}),
        ("https://evil-api.deepseek.com.example.org/v1", "any", {}),
    ],
)
def test_an_endpoint_is_known_by_its_host_or_its_model(
    base_url: str | None, model: str, expected: dict[str, Any]
) -> None:
    found = asdict(quirks_of(base_url, model))
    assert {**found, **expected} == found
    if not expected:
        assert found == asdict(Quirks())


def test_a_setting_changes_single_quirks() -> None:
    found = quirks_of("https://api.deepseek.com/v1", "m", '{"stream_options": false}')
    assert (found.stream_options, found.echoed) == (False, ("reasoning_content",))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"max_token_name": "x"}', '{"system_role": "user"}', '{"echoed": ["role"]}']
)
def test_a_setting_that_is_none_is_refused_with_the_fields(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SANDHOG_ENDPOINT_QUIRKS.*stream_options"):
        quirks_of(None, "m", text)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperatur": 1},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"max_tokens": 0},
        {"reasoning_effort": "Very High"},
        {"tool_choice": "two words"},
        {"parallel_tool_calls": True},
        {"extra_body": {"messages": []}},
        {"extra_body": {"model": "m"}},
        {"extra_body": {"tools": [], "stream": False}},
        {"headers": {"Host": "x"}},
        {"headers": {"content-length": "1"}},
        {"headers": {"a b": "x"}},
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "ä"}},
        {"stop": ["x"] * 17},
    ],
)
def test_parameters_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelParameters(**fields)


def test_a_headers_value_is_shown_nowhere() -> None:
    parameters = ModelParameters(headers={"X-Key": "hush-1"})
    assert "hush" not in repr(parameters)
    assert parameters.secrets == ("hush-1",)
    with pytest.raises(ValidationError) as caught:
        ModelParameters(headers={"X-Key": "hush\n2"})
    assert "hush" not in caught.value.errors(include_input=False)[0]["msg"]


def test_a_choice_of_an_unknown_tool_is_refused_with_the_known_ones() -> None:
    ModelParameters(tool_choice="required", first_tool_choice="Read").check_tools(["Read"])
    ModelParameters(tool_choice="server__tool").check_tools([])
    with pytest.raises(ConfigError, match="auto, none, required or one of Read, Bash"):
        ModelParameters(first_tool_choice="Raed").check_tools(["Read", "Bash"])
