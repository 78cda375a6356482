"""Permission: may this call run? Asked before dispatch, and enforced by the worker with the same function."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from tools.commands import Harm, judge
from tools.registry import Registry, builtin_registry


class Policy(StrEnum):
    """Who decides about a call."""

    GUARDED = "guarded"
    """Reading runs, known harm does not, a human decides about the rest."""
    BOXED = "boxed"
    """The box is the boundary: every known tool runs."""


class Decision(StrEnum):
    """What happens to a call."""

    ALLOW = "allow"
    ASK = "ask"
    """It runs only if a human says yes to exactly this call."""
    DENY = "deny"


@dataclass(frozen=True)
class Verdict:
    """A decision and its reason, in words for the human who is asked and the model that is denied."""

    decision: Decision
    reason: str


def decide(tool: str, arguments: Mapping[str, Any], policy: Policy, known: Registry | None = None) -> Verdict:
    """Return whether a call runs, and why; looks at nothing but its arguments.

    Args:
        tool: The tool's name.
        arguments: The call's arguments, as validated.
        policy: The session's policy.
        known: The session's tools; None means the built-in ones. A tool not among them is denied.
    """
    found = (known or builtin_registry()).get(tool)
    if found is None:
        return Verdict(Decision.DENY, f"there is no tool {tool}")
    if policy is Policy.BOXED:
        return Verdict(Decision.ALLOW, "the session is boxed")
    match found.effect:
        case "reads":
            return Verdict(Decision.ALLOW, f"{tool} only reads")
        case "changes":
            return Verdict(Decision.ASK, f"{tool} changes files")
        case "runs_commands":
            return _decide_command(arguments.get("command"))
        case other:
            assert_never(other)


def _decide_command(command: object) -> Verdict:
    if not isinstance(command, str):
        return Verdict(Decision.DENY, "there is no command to judge")
    finding = judge(command)
    match finding.harm:
        case Harm.NONE:
            return Verdict(Decision.ALLOW, finding.why)
        case Harm.POSSIBLE:
            return Verdict(Decision.ASK, finding.why)
        case Harm.CERTAIN:
            return Verdict(Decision.DENY, f"{finding.why}; the guarded policy refuses that")
        case other:
            assert_never(other)
