"""Which calls may run together: plan → **partition** → dispatch.

Neighbouring concurrency-safe calls join one batch; any other call stands alone. Batches are barriers: one begins
when the one before has all its answers. Calls that run in the coordinator end the chain or group before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from coordinator.session.plan import PlannedCall


class Travel(StrEnum):
    """How a run of calls goes to its node."""

    GROUP = "group"
    """All at once."""
    CHAIN = "chain"
    """One after the other."""
    HERE = "here"
    """Not at all: they run in the coordinator."""


@dataclass(frozen=True)
class Stretch:
    """Neighbouring calls that travel in one message, one safe batch or a run of batches of one; or that stay here."""

    travel: Travel
    calls: tuple[PlannedCall, ...]


def batches(calls: Sequence[PlannedCall]) -> list[tuple[PlannedCall, ...]]:
    """Return the calls in batches: `[Read, Read, Edit, Grep]` → `(Read Read) (Edit) (Grep)`."""
    found: list[tuple[PlannedCall, ...]] = []
    for (is_safe, _), run in groupby(calls, key=lambda call: (call.is_concurrency_safe, call.stays_here)):
        together = tuple(run)
        found.extend([together] if is_safe else [(call,) for call in together])
    return found


def stretches(calls: Sequence[PlannedCall]) -> list[Stretch]:
    """Return the batches as they travel: each safe batch a group, each run of unsafe calls a chain, or not at all."""
    return [Stretch(travel, tuple(run)) for travel, run in groupby(calls, key=_travel)]


def _travel(call: PlannedCall) -> Travel:
    if call.stays_here:
        return Travel.HERE
    return Travel.GROUP if call.is_concurrency_safe else Travel.CHAIN
