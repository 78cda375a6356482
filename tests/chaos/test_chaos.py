"""A short run of chaos, and what its checker finds in runs that went wrong."""

import pytest

from tests.chaos.__main__ import planned
from tests.chaos.checker import Asked, check_log, redis_leftovers
from tests.chaos.faults import KINDS, SHORT
from tests.chaos.run import Plan, perform, schedule
from tests.chaos.shape import Shape

SEED = 20_300_131
FAULTS = 32


def asked(number: int, kind: str = "success", answer: str | None = None) -> Asked:
    token = f"t{number}"
    return Asked(f"s step 1 call {number}", token, kind, f"said {token}" if answer is None else answer)


def test_a_log_that_agrees_is_fine() -> None:
    calls = [asked(1), asked(2, "did not run", ""), asked(3, "BOX_LOST", ""), asked(4), asked(5, "CANCELLED", "")]
    assert check_log("s", calls, "t1\nt3\nt4\n") == []
    assert check_log("s", calls, "t1\nt4\nt5\n") == []


@pytest.mark.parametrize(
    ("calls", "log", "found"),
    [
        ([asked(1)], "t1\nt1\n", "2 times"),
        ([asked(1)], "", "as success with 0 lines"),
        ([asked(1, answer="said t2")], "t1\n", "as success"),
        ([asked(1, "did not run", "")], "t1\n", "said not to have run"),
        ([asked(1)], "t1\nt9\n", "no call's"),
        ([asked(1), asked(2)], "t2\nt1\n", "order"),
        ([asked(1)], "t1\nt", "ends in"),
        ([asked(1, "CIRCUIT_OPEN", "")], "", "CIRCUIT_OPEN"),
    ],
)
def test_a_log_that_does_not_agree_is_a_violation(calls: list[Asked], log: str, found: str) -> None:
    assert any(found in one for one in check_log("s", calls, log))


def test_keys_without_an_owner_are_left_over() -> None:
    ttls = {"sandhog:node:n": 600, "sandhog:nodes": -1, "sandhog:claim:a": 9, "_kombu.binding.w.n": -1}
    ttls["sandhog:owned:c"] = 9
    assert redis_leftovers(ttls, ["n"]) == []
    left = {"sandhog:claim:b": -1, "sandhog:session:s": 600, "sandhog:places:n": 600, "sandhog:owned:d": -1, "w.n": -1}
    assert redis_leftovers({**ttls, **left}, ["n"]) == sorted(left)


def test_a_schedule_has_each_kind_and_follows_from_its_seed() -> None:
    plan = Plan(seed=1, faults=60)
    assert set(schedule(plan)) == set(KINDS)
    assert schedule(plan) == schedule(Plan(seed=1, faults=60)) != schedule(Plan(seed=2, faults=60))


@pytest.mark.parametrize("field", ["calm", "keep"])
def test_a_command_line_asks_for_what_its_words_say(field: str) -> None:
    plain, out = planned(["--seed", "1"])
    asked_for, _ = planned(["--seed", "1", f"--{field}"])
    assert out is None
    assert vars(asked_for) == {**vars(plain), field: True} != vars(plain)


@pytest.mark.docker
# Some thirty faults, and what they hurt has to recover before it can end.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_short_chaos() -> None:
    shape = Shape(sessions=4, most_pause_s=1.0, slow_of_100=60)
    report = perform(Plan(SEED, FAULTS, kinds=SHORT, shape=shape, between_s=0.3, answers_between=6, keep=True))

    assert report.verdict.violations == [], f"seed {SEED}, kept in {report.kept}"
    assert report.injected.total() >= FAULTS
    assert report.verdict.checked > 0
    # What may have run is at most what was under way when something was hurt.
    assert report.verdict.unknown <= report.injected.total() * report.plan.shape.sessions
