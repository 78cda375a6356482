"""Seat: where a session runs and under which terms its calls are decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tools.permission import Policy as ToolPolicy
from tools.permission import Terms
from tools.rules import Rules, rules_to_text
from worker.contract.orders import BoxOrder, NodeLife, Policy


@dataclass(frozen=True)
class Above:
    """How far a session is that waits for a sub-agent's answer."""

    session: str
    generation: int
    step: int


@dataclass(frozen=True)
class ChildSession:
    """A sub-agent's conversation."""

    session: str
    generation: int
    above: tuple[Above, ...]
    """Those that wait for its answer, the session itself first."""


@dataclass(frozen=True)
class Seat:
    """Where a session runs and under which rules."""

    box: BoxOrder
    node: NodeLife
    policy: Policy
    principal: str
    rules: Rules | None = None
    """The user's own rules; None if there are none."""
    is_read_only: bool = False
    """Only what certainly reads runs."""
    tools: frozenset[str] | None = None
    """The tools that the principal may use; None is all."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the principal; told to own tools."""
    child: ChildSession | None = None
    """The sub-agent that sits here, in the box of the session above it; None for that session itself."""

    @property
    def session(self) -> str:
        """Whose conversation it is; the box may be that of the session above it."""
        return self.child.session if self.child else self.box.session

    @property
    def generation(self) -> int:
        """The conversation's generation."""
        return self.child.generation if self.child else self.box.generation

    @property
    def terms(self) -> Terms:
        """The terms as the permission function takes them."""
        return Terms(ToolPolicy(self.policy.value), self.rules, self.is_read_only, self.tools)

    @cached_property
    def rules_text(self) -> str:
        """The rules as they travel with each order."""
        return rules_to_text(self.rules)
