"""What a session came to, as the caller gets it and as its transcript ends."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from coordinator.endpoint.reply import Usage
from coordinator.session.event_fields import SessionStatus
from worker.contract.checks import CheckOutcome
from worker.contract.orders import FinishOutcome


class SessionResult(BaseModel):
    """The one object of `--json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    session_id: str
    status: SessionStatus
    stop_reason: str
    """Why it ended, in a word or a short sentence."""
    text: str
    """The model's final answer; "" when there is none."""
    steps: int
    """Model replies."""
    calls: int
    """Tool calls answered."""
    usage: Usage
    cost_usd: float | None = None
    """US dollars; None where the model's prices are not known."""
    transcript: str
    """Path of the transcript."""
    patch: str | None
    """The workspace's changes as a patch; "" when nothing changed, None where the session worked on the directory."""
    patch_path: str | None
    """Where the patch lies."""
    applied: bool
    """The patch was put into the directory."""
    workspace: str
    workspace_mode: Literal["bind", "copy"]
    workspace_reason: str
    """Why that mode was taken."""
    notes: list[str]
    """What a person should know besides."""
    check: CheckOutcome | None = None
    """What the session's check said; None where none was run."""

    @property
    def exit_code(self) -> int:
        """The process's exit code: 0 completed, 1 stopped or failed, 130 cancelled."""
        return {"completed": 0, "stopped": 1, "failed": 1, "cancelled": 130}[self.status]


def notes_of(finished: FinishOutcome) -> list[str]:
    """Return what a person should know of a workspace's end."""
    notes = [*finished.notes, *([finished.error] if finished.error else [])]
    if finished.conflicts:
        notes.append("Nothing was applied: these files changed meanwhile: " + ", ".join(finished.conflicts))
    return notes


def read_patch(patch_path: str | None, notes: list[str]) -> str | None:
    """Return a patch's text, None where there is none; a fault is added to the notes."""
    try:
        return Path(patch_path).read_text(errors="replace") if patch_path else None
    except OSError as exc:
        notes.append(f"The patch cannot be read: {exc}")
        return None
