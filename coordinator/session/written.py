"""What is said of a call that came as text: reply → **written** → history."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.written_calls import WrittenCall, written_calls

WRITTEN_REPLIES = 2
"""As many replies in a row that hold calls as text end the session."""
STOP_REASON = "written_calls: the model goes on writing its calls as text instead of making them"

_ANNOUNCED = "announced"


def written_in(reply: ModelReply, tools: Sequence[Mapping[str, Any]]) -> tuple[WrittenCall, ...]:
    """The calls that a reply without calls holds as text, or only announces; empty for an answer.

    Args:
        reply: The model's.
        tools: The tools it was shown, as the endpoint got them.
    """
    if reply.calls or reply.refusal:
        return ()
    found = written_calls(reply.text, [tool["function"]["name"] for tool in tools])
    if not found and reply.text and reply.finish_reason == "tool_calls":
        return (WrittenCall("", _ANNOUNCED),)
    return found


def correction(written: Sequence[WrittenCall]) -> str:
    """What the model is told."""
    if all(call.form == _ANNOUNCED for call in written):
        what = "Your last reply said that it calls a tool, but no call came with it."
    else:
        names = ", ".join(dict.fromkeys(call.name for call in written if call.name)) or "a tool"
        what = f"Your last reply wrote a call of {names} into its text. Text is not run, and nothing was."
    return (
        f"{what} Make the call through the tool interface, as a tool call of the reply and not as text. "
        "If no call is needed, answer in plain words."
    )
