"""Boxes that are killed while they start."""

from pathlib import Path
from typing import cast

import pytest

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, LossReason
from sandbox.spec import BoxSpec
from worker.starting import TRIES, start

SPEC = BoxSpec("image", Path("/work"), Path("/spill"), 1, 1)


class Failing:
    """An engine whose boxes are lost a number of times before one stands."""

    def __init__(self, losses: int, reason: LossReason = LossReason.KILLED) -> None:
        self.losses = losses
        self.reason = reason
        self.starts = 0

    def start(self, spec: BoxSpec, session: str, generation: int) -> Box:
        self.starts += 1
        if self.starts <= self.losses:
            raise BoxLost(self.reason, "gone")
        return cast(Box, self)


def test_a_box_that_was_killed_as_it_started_is_started_again() -> None:
    engine = Failing(TRIES - 1)
    assert start(cast(Engine, engine), SPEC, "s", 1) is cast(Box, engine)


@pytest.mark.parametrize(("reason", "starts"), [(LossReason.KILLED, TRIES), (LossReason.ENDED, 1)])
def test_what_goes_on_dying_or_ends_by_itself_is_given_up(reason: LossReason, starts: int) -> None:
    engine = Failing(TRIES, reason)
    with pytest.raises(BoxLost):
        start(cast(Engine, engine), SPEC, "s", 1)
    assert engine.starts == starts
