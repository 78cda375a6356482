"""A short run of chaos, and what its checker finds in runs that went wrong."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos.__main__ import planned
from tests.chaos.causes import WITHIN_S, Done
from tests.chaos.checker import Asked, Verdict, check_claims, check_log, check_unknown, redis_leftovers
from tests.chaos.faults import KINDS, SHORT
from tests.chaos.run import Plan, perform, schedule
from tests.chaos.shape import Shape

SEED = 20_300_131
FAULTS = 32


def asked(number: int, kind: str = "success", answer: str | None = None) -> Asked:
    token = f"t{number}"
    return Asked(
        f"s step 1 call {number}", ("s", 1, number), token, kind, f"said {token}" if answer is None else answer
    )


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
        ([asked(1, "INTERNAL_ERROR", "")], "t1\n", "INTERNAL_ERROR"),
        ([asked(1, "EXECUTION_ERROR", "")], "", "EXECUTION_ERROR"),
        ([asked(1, "TIMEOUT", "")], "t1\n", "TIMEOUT"),
        ([replace(asked(1, "INTERNAL_ERROR", ""), token="")], "", "INTERNAL_ERROR"),
        ([replace(asked(1), harm="command_out_of_memory")], "t1\n", "as success"),
        ([replace(asked(1), harm="command_flooding")], "t1\n", "as success"),
    ],
)
def test_a_log_that_does_not_agree_is_a_violation(calls: list[Asked], log: str, found: str) -> None:
    assert any(found in one for one in check_log("s", calls, log))


@pytest.mark.parametrize(
    ("code", "at", "waited_s", "whom", "is_fine"),
    [
        ("BOX_LOST", 105.0, 1, {"p1", "n"}, True),
        ("BOX_LOST", 105.0, 1, {"p2"}, False),
        ("BOX_LOST", 90.0, 1, {"p1"}, False),
        ("BOX_LOST", 101.0 + WITHIN_S + 2, 1, {"p1"}, False),
        ("BOX_LOST", 101.0 + WITHIN_S + 2, 3, {"p1"}, True),
        ("CANCELLED", 105.0, 1, {"p1"}, False),
        ("OUTCOME_UNKNOWN", 201.0, 1, {"p2"}, True),
    ],
    ids=["by_its_box", "by_anothers_box", "before_it", "long_after_it", "under_way", "of_another_kind", "by_redis"],
)
def test_what_may_have_run_has_a_fault_before_it(
    code: str, at: float, waited_s: float, whom: set[str], is_fine: bool
) -> None:
    faults = [Done("box_killed", 100, 101, frozenset(["p1"])), Done("redis_away", 200, 206, frozenset())]
    wrong = check_unknown([replace(asked(1, code, ""), at=at, waited_s=waited_s)], whom, faults)
    assert wrong == [] if is_fine else "without a fault" in wrong[0]


def test_what_was_claimed_was_not_said_not_to_have_run() -> None:
    calls = [asked(1), asked(2, "did not run", ""), asked(3, "did not run", ""), asked(4, "OUTCOME_UNKNOWN", "")]
    (wrong,) = check_claims(calls, {("s", 1, number) for number in (1, 3, 4)})
    assert "call 3" in wrong


def test_more_than_a_share_of_calls_that_may_have_run_is_a_violation() -> None:
    verdict = Verdict(calls=Counter(success=95, BOX_LOST=5))
    verdict.demand_few_unknown(0.05)
    assert verdict.violations == []
    verdict.demand_few_unknown(0.04)
    assert "5 of 100" in verdict.violations[0]


def test_a_long_schedule_has_each_kind_often_enough() -> None:
    assert min(Counter(schedule(Plan(seed=3, faults=1_000))).values()) >= 20


def test_keys_without_an_owner_are_left_over() -> None:
    ttls = {"sandhog:node:n": 600, "sandhog:nodes": -1, "sandhog:claim:a": 9, "sandhog:owned:c": 9}
    assert redis_leftovers(ttls, ["n"]) == []
    left = {"sandhog:claim:b": -1, "sandhog:session:s": 600, "sandhog:places:n": 600, "sandhog:owned:d": -1, "w.n": -1}
    left["_kombu.binding.w.n"] = -1
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
    # What was under way when something was hurt: some two in a hundred.
    plan = Plan(SEED, FAULTS, kinds=SHORT, shape=shape, between_s=0.3, answers_between=6, most_unknown=0.05, keep=True)
    report = perform(plan)

    assert report.verdict.violations == [], f"seed {SEED}, kept in {report.kept}"
    assert report.injected.total() >= FAULTS
    assert report.verdict.checked > 0
