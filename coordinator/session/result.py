"""What a session came to, as the caller gets it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from coordinator.endpoint.reply import Usage
from coordinator.session.events import SessionStatus
from worker.contract.checks import CheckOutcome


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
