"""Who says yes to a call that the policy asks about: plan → **approvals** → dispatch.

A call is asked about before it is sent, so that no lane waits for a person and the person sees the results of the
calls before it. A yes becomes a grant for this session, this tool and these very arguments.
"""

from dataclasses import dataclass
from typing import Protocol

from coordinator.plan import PlannedCall


@dataclass(frozen=True)
class Decided:
    """A human's answer, or that of the rule that stands for one."""

    is_allowed: bool
    by: str
    """Who or what decided, for the transcript."""
    note: str = ""
    """Said to the model with a no."""
    is_lasting: bool = False
    """The same call may run again in this session without being asked about."""


class Approver(Protocol):
    """Answers for a human."""

    async def ask(self, call: PlannedCall, reason: str) -> Decided:
        """Return the decision about one call that the policy asks about for this reason."""


class Never:
    """Nobody is there: every question is answered with no."""

    async def ask(self, call: PlannedCall, reason: str) -> Decided:
        """Deny."""
        note = "nobody is there to approve it; work with what is allowed, or say what you would need."
        return Decided(False, by="--approve never", note=note)


class Always:
    """Everything that is asked about is allowed, on the user's word."""

    async def ask(self, call: PlannedCall, reason: str) -> Decided:
        """Allow."""
        return Decided(True, by="--approve always")
