"""Whose failure it was: result → **verdict** → another try, or the task's line."""

import re

from coordinator.session.result import SessionResult

_INFRASTRUCTURE = frozenset({"box", "redis", "storage", "internal", "cluster", "taken over", "model"})
"""What a `stop_reason` of a failed session begins with, where something around it gave way."""
_OWN = re.compile(r"answered (?:400|413|422)\b")
"""The endpoint would not take what this very session sent: its messages or its parameters."""


def infrastructure_failure(result: SessionResult, *, has_check: bool = False) -> str | None:
    """Return why a session says nothing about its task; None where what it came to is the task's own."""
    kind = result.stop_reason.partition(":")[0]
    if result.status == "failed" and kind in _INFRASTRUCTURE:
        return None if kind == "model" and _OWN.search(result.stop_reason) else result.stop_reason
    if result.check is not None and result.check.is_infrastructure:
        return result.check.error
    if has_check and result.check is None and result.status in ("completed", "stopped"):
        return _last_note(result, "nobody knows what the check said")
    if result.status == "completed" and result.calls > 0 and result.patch_path is None:
        return _last_note(result, "nobody knows what became of the workspace")
    return None


def _last_note(result: SessionResult, otherwise: str) -> str:
    return result.notes[-1] if result.notes else otherwise
