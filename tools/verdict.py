"""Verdict: what may happen to a call, and why."""

from dataclasses import dataclass
from enum import StrEnum


class Decision(StrEnum):
    """What happens to a call."""

    ALLOW = "allow"
    ASK = "ask"
    """It runs only if a human says yes to exactly this call."""
    DENY = "deny"

    @property
    def severity(self) -> int:
        """How much it keeps from running: 0 for ALLOW, 1 for ASK, 2 for DENY."""
        return list(Decision).index(self)


@dataclass(frozen=True)
class Verdict:
    """A decision and its reason, in words for the human who is asked and the model that is denied."""

    decision: Decision
    reason: str
    part: tuple[int, int] | None = None
    """Where in the command's text, in bytes of UTF-8, stands what decided; None for all of it or none."""


def severest(*verdicts: Verdict) -> Verdict:
    """Return the verdict that keeps the most from running, of equal ones the first."""
    return max(verdicts, key=lambda verdict: verdict.decision.severity)
