"""The flags that say how the model is asked, what each is called, and what they make together."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.errors import ConfigError
from coordinator.settings import Settings

PANEL = "How the model is asked"


def _option(help: str, name: str, **more: Any) -> Any:
    return typer.Option(name, help=help, rich_help_panel=PANEL, **more)


System = Annotated[str | None, _option("Text behind the system prompt.", "--system")]
NoStream = Annotated[bool, _option("Take each reply whole instead of as it comes.", "--no-stream")]
Temperature = Annotated[float | None, _option("0 for the likeliest words.", "--temperature")]
TopP = Annotated[float | None, _option("The share of likely words that is drawn from.", "--top-p")]
MaxTokens = Annotated[int | None, _option("Tokens of one reply at most.", "--max-tokens")]
ReasoningEffort = Annotated[str | None, _option("none, minimal, low, medium, high, …", "--reasoning-effort")]
Seed = Annotated[int | None, _option("For replies that can be had again.", "--seed")]
Stop = Annotated[list[str] | None, _option("Text that ends a reply; may be repeated.", "--stop")]
ToolChoice = Annotated[
    str | None, _option("auto, none, required, or the tool that each reply must call.", "--tool-choice")
]
FirstToolChoice = Annotated[str | None, _option("The same for the first reply only.", "--first-tool-choice")]
NoParallelToolCalls = Annotated[bool, _option("One call a reply.", "--no-parallel-tool-calls")]
ExtraBody = Annotated[
    str | None, _option("Further fields of each request, as a JSON object.", "--extra-body", metavar="JSON")
]
Header = Annotated[list[str] | None, _option("A further header; may be repeated.", "--header", metavar="NAME=VALUE")]


def model_parameters(
    *,
    system: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    reasoning_effort: str | None = None,
    seed: int | None = None,
    stop: Sequence[str] | None = None,
    tool_choice: str | None = None,
    first_tool_choice: str | None = None,
    no_parallel_tool_calls: bool = False,
    extra_body: str | None = None,
    header: Sequence[str] | None = None,
) -> ModelParameters:
    """What the flags ask for.

    Raises:
        ConfigError: One of them cannot be; names the flag, and no header's value.
    """
    given: dict[str, Any] = {
        "system": system or None,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "reasoning_effort": reasoning_effort,
        "seed": seed,
        "stop": tuple(stop or ()) or None,
        "tool_choice": tool_choice,
        "first_tool_choice": first_tool_choice,
        "parallel_tool_calls": False if no_parallel_tool_calls else None,
        "extra_body": None if extra_body is None else _object(extra_body),
        "headers": _headers(header or ()) or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return ModelParameters(**given) if given else DEFAULT_PARAMETERS
    except ValidationError as exc:
        fault = exc.errors(include_input=False, include_url=False, include_context=False)[0]
        flag = "header" if fault["loc"][0] == "headers" else str(fault["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{flag}: {fault['msg'].removeprefix('Value error, ')}.") from None


def model_settings(settings: Settings, model: str | None, *, stream: bool = True) -> ModelSettings:
    """Where the model is and how patiently it is asked, by settings and environment.

    Args:
        settings: This program's.
        model: The model's name, where a flag gives it.
        stream: Whether replies are streamed.

    Raises:
        ConfigError: No endpoint is named.
    """
    return replace(
        ModelSettings.from_environment(model or settings.model, endpoint_environment(settings)),
        stream=stream,
        timeout_s=settings.endpoint_timeout_s,
        max_tries=settings.endpoint_tries,
        max_retry_s=settings.endpoint_retry_s,
        max_requests=settings.endpoint_requests,
        quirks=settings.endpoint_quirks,
        strict_tools=settings.strict_tools,
    )


def endpoint_environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment, with the endpoint's address of the settings where it names none."""
    if settings.endpoint_url is None or os.environ.get("OPENAI_BASE_URL"):
        return os.environ
    return {**os.environ, "OPENAI_BASE_URL": settings.endpoint_url}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"--extra-body: not JSON: {exc}.") from None
    if not isinstance(value, dict):
        raise ConfigError('--extra-body: a JSON object is wanted, such as {"top_k": 40}.')
    return value


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("--header: give NAME=VALUE.")
        headers[name.strip()] = value.strip()
    return headers
