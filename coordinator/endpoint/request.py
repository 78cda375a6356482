"""The body of a request: history, tools, parameters, quirks → **request** → model."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.parameters import ModelParameters
from coordinator.endpoint.quirks import Quirks


def request_body(
    model: str,
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    parameters: ModelParameters,
    quirks: Quirks,
    *,
    stream: bool,
    is_first: bool = False,
) -> dict[str, Any]:
    """What is posted.

    Args:
        model: The model's name.
        messages: The history; it is not changed.
        tools: The tools' schemas; None or empty leaves all fields about tools out.
        parameters: The session's.
        quirks: The endpoint's.
        stream: Whether a streamed reply is asked for.
        is_first: Whether it is the session's first request.
    """
    body: dict[str, Any] = {"model": model, "messages": _messages(messages, quirks)}
    if tools:
        body["tools"] = tools
        body |= _about_tools(tools, parameters, quirks, is_first=is_first)
    if stream:
        body["stream"] = True
        if quirks.stream_options:
            body["stream_options"] = {"include_usage": True}
    named = {
        "temperature": parameters.temperature,
        "top_p": parameters.top_p,
        quirks.max_tokens_name: parameters.max_tokens,
        "reasoning_effort": parameters.reasoning_effort,
        quirks.seed_name: parameters.seed,
        "stop": list(parameters.stop) or None,
    }
    return {**body, **{name: value for name, value in named.items() if value is not None}, **parameters.extra_body}


def _about_tools(
    tools: Sequence[Mapping[str, Any]], parameters: ModelParameters, quirks: Quirks, *, is_first: bool
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if parameters.parallel_tool_calls is False and quirks.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    choice = parameters.tool_choice
    if is_first and parameters.first_tool_choice is not None:
        choice = parameters.first_tool_choice
    if choice is None or not quirks.tool_choice:
        return fields
    if choice in ("auto", "none"):
        return {**fields, "tool_choice": choice}
    shown = [tool["function"]["name"] for tool in tools]
    if choice != "required" and choice not in shown:
        # Switched off after faults: an endpoint refuses a choice of what it is not shown.
        return fields
    if choice == "required" or not quirks.named_tool_choice:
        return {**fields, "tool_choice": quirks.required_word}
    return {**fields, "tool_choice": {"type": "function", "function": {"name": choice}}}


def _messages(messages: list[dict[str, Any]], quirks: Quirks) -> list[dict[str, Any]]:
    """The messages in the endpoint's own way; the list itself where it has none."""
    if quirks.system_role == "system" and quirks.null_content:
        return messages
    return [_message(message, quirks) for message in messages]


def _message(message: dict[str, Any], quirks: Quirks) -> dict[str, Any]:
    if message["role"] == "system":
        return {**message, "role": quirks.system_role}
    if message["role"] == "assistant" and message["content"] is None and not quirks.null_content:
        return {**message, "content": ""}
    return message
