"""Bounds: how much of its calls' text the model is shown; the cutting is the node's and `budget`'s."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budgets:
    """How much text the model is shown."""

    result_bytes: int = 50_000
    """Of one result; the node cuts what is longer."""
    step_bytes: int = 200_000
    """Of all results of one step together."""


BUDGETS = Budgets()
