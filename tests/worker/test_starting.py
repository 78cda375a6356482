"""Boxes that are killed while they start."""

from pathlib import Path
from typing import cast

import pytest

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, EngineAway, EngineFailing, EngineUnavailable, LossReason, SandboxError
from sandbox.spec import BoxSpec
from worker.starting import AWAY_S, FAILING_S, TRIES, start

SPEC = BoxSpec("image", Path("/work"), Path("/spill"), 1, 1)


class Failing:
    """An engine that fails a number of times before a box stands."""

    def __init__(self, losses: int, reason: LossReason = LossReason.KILLED, error: SandboxError | None = None) -> None:
        self.losses = losses
        self.error = error or BoxLost(reason, "gone")
        self.starts = 0

    def start(self, spec: BoxSpec, session: str, generation: int) -> Box:
        self.starts += 1
        if self.starts <= self.losses:
            raise self.error
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


class Ending(Failing):
    """An engine that is restarted: it fails, nobody listens, it fails once more, and then a box stands."""

    def __init__(self) -> None:
        super().__init__(0)
        self.to_come = [EngineFailing("500")] * 3 + [EngineAway("nobody listens")] * 30 + [EngineFailing("500")]

    def start(self, spec: BoxSpec, session: str, generation: int) -> Box:
        if self.to_come:
            raise self.to_come.pop(0)
        return super().start(spec, session, generation)


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_engine_that_is_being_restarted_is_waited_for() -> None:
    engine, clock = Failing(20, error=EngineAway("nobody listens")), Clock()
    assert start(cast(Engine, engine), SPEC, "s", 1, clock=clock, sleep=clock.sleep) is cast(Box, engine)


def test_an_engine_that_stays_away_is_given_up() -> None:
    engine, clock = Failing(10_000, error=EngineAway("nobody listens")), Clock()
    with pytest.raises(EngineAway):
        start(cast(Engine, engine), SPEC, "s", 1, clock=clock, sleep=clock.sleep)
    assert AWAY_S <= clock.now < AWAY_S + 1


def test_an_engine_that_fails_before_it_goes_is_waited_for_until_it_is_back() -> None:
    engine, clock = Ending(), Clock()
    assert start(cast(Engine, engine), SPEC, "s", 1, clock=clock, sleep=clock.sleep) is cast(Box, engine)
    assert clock.now > FAILING_S


def test_an_engine_that_goes_on_failing_is_given_up_soon() -> None:
    engine, clock = Failing(10_000, error=EngineFailing("500")), Clock()
    with pytest.raises(EngineFailing):
        start(cast(Engine, engine), SPEC, "s", 1, clock=clock, sleep=clock.sleep)
    assert FAILING_S <= clock.now < FAILING_S + 1


def test_what_an_engine_refuses_is_not_asked_again() -> None:
    engine = Failing(1, error=EngineUnavailable("no such mount"))
    with pytest.raises(EngineUnavailable):
        start(cast(Engine, engine), SPEC, "s", 1)
    assert engine.starts == 1
