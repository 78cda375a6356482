"""What is run on a session's workspace once the session has ended: order → **check** → finish outcome."""

from pydantic import BaseModel, ConfigDict

from worker.contract.extras import FileIn

CHECK_FILES_DIR = "check-files"
"""In the session's directory: the content of a check's files, named by their place in the list. No box sees it."""
CHECKED_FILE = "checked.json"
"""In the session's directory: what the check said, so that it is run once however often it is asked for."""
CHECK_TAIL_BYTES = 16_000
"""As much of the end of each of a check's streams is kept."""


class Check(BaseModel):
    """A command that judges a workspace. The model never sees it, nor its files."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    command: str
    """Run by the box's shell in /workspace, as the agent's user, once nothing of the session's runs any more."""
    files: tuple[FileIn, ...] = ()
    """Put into the workspace first, in place of what stands there."""
    timeout_s: float = 600.0
    hosts: tuple[str, ...] = ()
    """As `BoxExtras.allow_hosts`; for a fresh box only."""
    is_fresh: bool = False
    """In a new box from the same image: of the session only the workspace is left."""


class CheckOutcome(BaseModel):
    """What a check said."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    exit_code: int | None = None
    """None where it did not end by itself."""
    signal: int | None = None
    timed_out: bool = False
    stdout: str = ""
    """The last `CHECK_TAIL_BYTES` of it."""
    stderr: str = ""
    duration_ms: float = 0.0
    error: str | None = None
    """Why it could not be run to its end, in words."""
    is_infrastructure: bool = False
    """The error is not the session's doing: there was no box to run it in."""

    @property
    def passed(self) -> bool:
        """It ran to its end and said yes."""
        return self.exit_code == 0 and self.error is None
