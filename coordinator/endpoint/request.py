"""The body of a request: history, tools, parameters, quirks → **request** → model."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.parameters import ModelParameters
from coordinator.endpoint.quirks import ECHOABLE, Quirks


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
    """The messages in the endpoint's own way, as they are where it has none."""
    unwanted = ECHOABLE.difference(quirks.echoed)
    return [_message(message, quirks, unwanted) for message in messages]


def _message(message: dict[str, Any], quirks: Quirks, unwanted: frozenset[str]) -> dict[str, Any]:
    role = message["role"]
    if role == "system" and quirks.system_role != "system":
        return {**message, "role": quirks.system_role}
    if role != "assistant":
        return message
    calls = message.get("tool_calls", ())
    if unwanted.isdisjoint(message) and all(unwanted.isdisjoint(call) for call in calls):
        sent = message
    else:
        sent = {name: value for name, value in message.items() if name not in unwanted}
        if calls:
            sent["tool_calls"] = [{name: call[name] for name in call if name not in unwanted} for call in calls]
    if sent["content"] is None and not quirks.null_content:
        sent = {**sent, "content": ""}
    if calls and quirks.echoes_empty:
        sent = {**dict.fromkeys(quirks.echoed, ""), **sent}
    return sent
