"""Flags that say how the model is asked: what they make, and what is said of those that cannot be."""

from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.commands.model_flags import model_parameters, model_settings
from coordinator.commands.run import app
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.errors import ConfigError
from coordinator.settings import Settings


def test_no_flags_are_no_parameters() -> None:
    assert model_parameters() == DEFAULT_PARAMETERS


def test_flags_become_parameters() -> None:
    assert model_parameters(
        system="Be brief.",
        temperature=0.0,
        top_p=0.9,
        max_tokens=100,
        reasoning_effort="low",
        seed=0,
        stop=["END"],
        tool_choice="auto",
        first_tool_choice="Read",
        no_parallel_tool_calls=True,
        extra_body='{"top_k": 40}',
        header=["X-Key=a=b", "X-Other = c "],
    ) == ModelParameters(
        system="Be brief.",
        temperature=0.0,
        top_p=0.9,
        max_tokens=100,
        reasoning_effort="low",
        seed=0,
        stop=("END",),
        tool_choice="auto",
        first_tool_choice="Read",
        parallel_tool_calls=False,
        extra_body={"top_k": 40},
        headers={"X-Key": "a=b", "X-Other": "c"},
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"temperature": -1.0}, "--temperature: Input should be greater than or equal to 0"),
        ({"max_tokens": 0}, "--max-tokens: "),
        ({"extra_body": "{"}, "--extra-body: not JSON"),
        ({"extra_body": "[]"}, "--extra-body: a JSON object is wanted"),
        ({"extra_body": '{"messages": []}'}, "--extra-body: it may not set messages"),
        ({"header": ["X-Key"]}, "--header: give NAME=VALUE"),
        ({"header": ["Host=x"]}, "--header: 'Host' cannot be set"),
        ({"tool_choice": "a b"}, "--tool-choice: "),
    ],
)
def test_a_flag_that_cannot_be_is_named(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_parameters(**flags)
    assert words in str(caught.value)


def test_the_value_of_a_header_is_in_no_error() -> None:
    with pytest.raises(ConfigError) as caught:
        model_parameters(header=["X-Key=hush\nhush"])
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_settings_say_how_patiently_the_endpoint_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    for name, value in {
        "TIMEOUT_S": "5",
        "TRIES": "2",
        "RETRY_S": "9",
        "REQUESTS": "3",
        "QUIRKS": '{"stream_options": false}',
    }.items():
        monkeypatch.setenv(f"SANDHOG_ENDPOINT_{name}", value)
    made = model_settings(Settings(strict_tools=True), "m", stream=False)
    assert (made.model, made.stream, made.timeout_s, made.max_tries, made.max_retry_s) == ("m", False, 5, 2, 9)
    assert (made.max_requests, made.quirks, made.strict_tools) == (3, '{"stream_options": false}', True)


def test_the_help_lists_them_together() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    for flag in ("--system", "--no-stream", "--temperature", "--tool-choice", "--extra-body", "--header"):
        assert flag in shown.output


def test_a_choice_of_a_tool_that_there_is_not_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    result = CliRunner().invoke(app, ["do it", "--workspace", str(tmp_path), "--tool-choice", "Raed"])
    assert isinstance(result.exception, ConfigError)
    assert "auto, none, required or one of" in str(result.exception)
