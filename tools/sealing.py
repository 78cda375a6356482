"""What a tool handed back → **sealed ToolResult**: checked, cut loose from the tool, and bounded.

`text` is bounded by the budget that follows, which keeps the whole of it in the spill; everything else is here.
"""

from typing import Any

from pydantic import JsonValue, ValidationError

from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.cutting import shorten_value

DATA_BYTES = 32_000
"""JSON of `data` and of `context`, each."""
MESSAGE_CHARS = 4_000


def sealed(value: object, name: str) -> ToolResult:
    """Return the tool's result as one that shares nothing with the tool any more, within the bounds.

    Raises:
        ToolFailure: INTERNAL_ERROR; it is no ToolResult, or holds what JSON cannot.
    """
    return _bounded(checked(value, name))


def checked(value: object, name: str) -> ToolResult:
    """Return the tool's result as `sealed` does, but whole.

    Raises:
        ToolFailure: INTERNAL_ERROR; it is no ToolResult, or holds what JSON cannot.
    """
    if not isinstance(value, ToolResult):
        words = f"{name} returned {type(value).__name__} instead of a result. This is a fault of the tool."
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words)
    try:
        # Once more: a result that was made without validation, or changed afterwards, does not pass.
        sound = ToolResult.model_validate(vars(value))
        # By way of JSON, so that nothing of it is the tool's any more.
        return ToolResult.model_validate_json(sound.model_dump_json(), strict=True)
    except (ValidationError, ValueError, TypeError, RecursionError) as exc:
        words = f"{name} returned a result that JSON cannot hold. This is a fault of the tool: {exc}"
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc


def _bounded(result: ToolResult) -> ToolResult:
    changes: dict[str, Any] = {}
    for field, content in (("data", result.data), ("context", result.context)):
        size = len(_json(result, field))
        if size > DATA_BYTES:
            changes[field] = _shortened(content, size)
    if result.error_message is not None and len(result.error_message) > MESSAGE_CHARS:
        changes["error_message"] = shorten_value(result.error_message, limit_chars=MESSAGE_CHARS)
    return result.model_copy(update=changes) if changes else result


def _json(result: ToolResult, field: str) -> bytes:
    return result.model_dump_json(include={field}).encode()


def _shortened(content: dict[str, JsonValue], size: int) -> dict[str, JsonValue]:
    """Return the entries that are small, and how much there was."""
    room = DATA_BYTES - 1_000
    kept: dict[str, JsonValue] = {}
    for key, value in content.items():
        entry = len(ToolResult(status="success", text="", data={key: value}).model_dump_json(include={"data"}).encode())
        if entry <= room:
            kept[key] = value
            room -= entry
    return {**kept, "left_out_bytes": size}
