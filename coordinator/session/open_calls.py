"""Calls of a session's present step without an answer, and people who cancel some: wish → **open_calls** → step."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.session.plan import PlannedCall

NAME = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
"""A call as people name it, `3.0`, or all calls of a step, `3`."""


@dataclass
class OpenCalls:
    """Knows which calls a person may still cancel, one by one."""

    unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once every call that is open was cancelled."""
    _step: int = 0
    _stops: dict[int, asyncio.Event] = field(default_factory=dict)

    def begin(self, step: int, calls: Iterable[PlannedCall]) -> None:
        """Let the calls of a step be cancelled until each has its answer; those that were before still are."""
        known = self._stops if step == self._step else {}
        self._step, self._stops = step, {call.index: known.get(call.index, asyncio.Event()) for call in calls}
        self.unwanted.clear()
        self._look()

    def stop_of(self, index: int) -> asyncio.Event:
        """Return what is set when a person cancels this call of the step; it must be open."""
        return self._stops[index]

    def answered(self, step: int, index: int) -> None:
        """Let a call be cancelled no more."""
        if step == self._step:
            self._stops.pop(index, None)
            self._look()

    def stop(self, step: int, index: int | None) -> list[int]:
        """Cancel one call, or with None all that are open of a step; return which were open."""
        found = [at for at in self._stops if step == self._step and index in (None, at)]
        for at in found:
            self._stops[at].set()
        self._look()
        return found

    def _look(self) -> None:
        if self._stops and all(stop.is_set() for stop in self._stops.values()):
            self.unwanted.set()


def parse(name: str) -> tuple[int, int | None]:
    """Return the step and the place in it that a name stands for; None is all of the step.

    Raises:
        ValueError: it is no name of a call or step.
    """
    if re.match(NAME, name) is None:
        raise ValueError(f"{name[:40]!r} is neither a call, such as 3.0, nor a step, such as 3")
    step, _, index = name.partition(".")
    return int(step), int(index) if index else None
