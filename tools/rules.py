"""Rules: a user's own policy as frozen data: policy file → **rules** → permission, on both sides of the queue."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from tools.matching import REST, Match, match_for_allowing, match_for_refusing
from tools.shell import SimpleCommand
from tools.verdict import Decision

MOST_RULES = 200
MOST_PATTERN_WORDS = 32
MOST_BYTES = 32_000
"""Size of a user's rules as they travel with every call."""
ANY_TOOL = "*"
MCP_MARK = "__"
"""Stands in the name of an MCP server's tool between the server's name and its own."""

_Word = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Otherwise(StrEnum):
    """What happens to what no rule is meant for."""

    DENY = "deny"
    ASK = "ask"
    POLICY = "policy"
    """The session's policy, guarded or boxed, decides."""


class Rule(BaseModel):
    """One line of a user's policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tools: tuple[_Word, ...]
    """Names of the tools it is for; `*` is any, and one that ends in `*` stands for all that begin so."""
    command: tuple[_Word, ...] | None = None
    """The pattern of a simple command's words; None is for every call of the tools."""
    decision: Decision
    why: str = ""
    """Said to the human who is asked and to the model that is denied."""

    def is_for(self, tool: str) -> bool:
        """Return whether it speaks of this tool at all."""
        return any(name == tool or (name.endswith(ANY_TOOL) and tool.startswith(name[:-1])) for name in self.tools)

    @property
    def is_spelled_out(self) -> bool:
        """Whether it has a pattern, and no wildcard in it."""
        return self.command is not None and not any("*" in word or word == REST for word in self.command)


@dataclass(frozen=True)
class Matched:
    """The first rule that is meant for a call."""

    number: int | None = None
    """Counted from 1; None if there is none."""
    rule: Rule | None = None
    doubt: int | None = None
    """An earlier rule that asks or denies and may be meant too; None if there is none."""


class Rules(BaseModel):
    """A user's own policy: the first rule that is meant decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: tuple[Rule, ...] = ()
    otherwise: Otherwise = Otherwise.DENY

    def first_for(self, tool: str, command: SimpleCommand | None, *, is_readable: bool = True) -> Matched:
        """Return the first rule for a tool's call.

        Args:
            tool: The tool's name.
            command: The simple command in question; None for a tool that runs none, or for what cannot be read.
            is_readable: False when there is a command, but not one that can be read: every pattern may mean it then.
        """
        doubt: int | None = None
        for number, rule in enumerate(self.rules, start=1):
            match = _match(rule, tool, command, is_readable)
            if match is Match.YES:
                return Matched(number, rule, doubt)
            if match is Match.MAYBE and doubt is None:
                doubt = number
        return Matched(doubt=doubt)


def _match(rule: Rule, tool: str, command: SimpleCommand | None, is_readable: bool) -> Match:
    if not rule.is_for(tool):
        return Match.NO
    if rule.command is None:
        return Match.YES
    is_allowing = rule.decision is Decision.ALLOW
    if command is None:
        return Match.NO if is_readable or is_allowing else Match.MAYBE
    if is_allowing:
        return Match.YES if match_for_allowing(rule.command, command) else Match.NO
    return match_for_refusing(rule.command, command)


def rules_to_text(rules: Rules | None) -> str:
    """Return rules as they travel; "" for None."""
    return rules.model_dump_json(exclude_defaults=True) if rules is not None else ""


@lru_cache(maxsize=64)
def rules_from_text(text: str) -> Rules | None:
    """Return the rules that travelled as this text; None for "".

    Raises:
        ValueError: it is too large, or not such a text.
    """
    if not text:
        return None
    if len(text) > MOST_BYTES:
        raise ValueError(f"rules of {len(text)} bytes are more than {MOST_BYTES}")
    return Rules.model_validate_json(text)
