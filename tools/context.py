"""What a function tool may use beside its arguments: a parameter that is annotated `ToolContext` gets one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class BoxRun:
    """How a command in the session's box ended."""

    exit_code: int | None
    """None when it was ended, by its limit or by a signal."""
    stdout: str
    """Its output; a note stands where the middle of more than 2 MB is left out."""
    stderr: str
    timed_out: bool


class ToolBox(Protocol):
    """The session's box, as far as a function tool needs it."""

    def run(self, command: str | Sequence[str], *, timeout_s: float = 30.0) -> BoxRun:
        """Run a command in the session's working directory and return how it ended.

        Args:
            command: Text for the shell, or the words of a command that no shell reads (needs no quoting).
            timeout_s: After so many seconds it is ended with all its processes.

        Raises:
            ToolFailure: the box refused it, or the tool does not run on the box.
        """


@dataclass(frozen=True)
class ToolContext:
    """For whom and for which call a function runs, and its session's box."""

    principal: str
    """Who the session acts for: show them nothing that they may not see."""
    session: str
    call_key: str
    """The same for every delivery of one call, another for every other call: good as an idempotency key."""
    box: ToolBox
    """Answers only where the tool is declared `runs_on="box"`."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the principal: tenant, groups, …"""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The principal's values of the secrets that the tool is declared with, by name."""
