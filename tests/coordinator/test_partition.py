"""Which calls run together, and how they travel."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.endpoint.reply import RawCall
from coordinator.session.partition import Stretch, Travel, batches, stretches
from coordinator.session.plan import PlannedCall, plan
from tools.registry import builtin_registry

ARGUMENTS = {
    "Read": {"path": "x"},
    "Grep": {"pattern": "x"},
    "Glob": {"pattern": "*"},
    "Edit": {"path": "x", "old_string": "a", "new_string": "b"},
    "Write": {"path": "x", "content": "y"},
    "Bash": {"command": "true"},
}
SAFE = {"Read", "Grep", "Glob"}
REGISTRY = builtin_registry()


def planned(*names: str) -> tuple[PlannedCall, ...]:
    raw = [RawCall(index, f"c{index}", name, dict(ARGUMENTS.get(name, {}))) for index, name in enumerate(names)]
    return plan(raw, [f"c{index}" for index in range(len(raw))], REGISTRY)


def names(calls: tuple[PlannedCall, ...]) -> str:
    return " ".join(call.name for call in calls)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_examples_of_these_tests_are_sound(name: str) -> None:
    assert planned(name)[0].refusal is None


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (["Read", "Read", "Edit", "Grep"], ["Read Read", "Edit", "Grep"]),
        (["Read", "Grep", "Edit", "Read", "Bash", "Read"], ["Read Grep", "Edit", "Read", "Bash", "Read"]),
        (["Edit", "Edit"], ["Edit", "Edit"]),
        (["Read", "Glob", "Grep"], ["Read Glob Grep"]),
        (["Bash"], ["Bash"]),
        ([], []),
        (["Read", "Nope", "Read"], ["Read", "Nope", "Read"]),
    ],
)
def test_neighbouring_safe_calls_are_one_batch(calls: list[str], expected: list[str]) -> None:
    assert [names(batch) for batch in batches(planned(*calls))] == expected


def test_a_safe_batch_travels_as_a_group_and_unsafe_ones_as_a_chain() -> None:
    found = stretches(planned("Read", "Read", "Edit", "Bash", "Grep", "Write"))

    assert [(stretch.travel, names(stretch.calls)) for stretch in found] == [
        (Travel.GROUP, "Read Read"),
        (Travel.CHAIN, "Edit Bash"),
        (Travel.GROUP, "Grep"),
        (Travel.CHAIN, "Write"),
    ]


@given(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=30))
def test_no_call_is_lost_and_the_order_is_kept(calls: list[str]) -> None:
    all_calls = planned(*calls)

    assert tuple(call for batch in batches(all_calls) for call in batch) == all_calls
    assert tuple(call for stretch in stretches(all_calls) for call in stretch.calls) == all_calls


@given(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=30))
def test_a_batch_is_as_large_as_may_be_and_never_larger(calls: list[str]) -> None:
    found = batches(planned(*calls))

    for batch in found:
        assert len(batch) == 1 or {call.name for call in batch} <= SAFE
    for before, after in pairwise(found):
        assert not ({before[-1].name, after[0].name} <= SAFE)


@given(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=30))
def test_stretches_alternate_and_none_is_empty(calls: list[str]) -> None:
    found: list[Stretch] = stretches(planned(*calls))

    assert all(stretch.calls for stretch in found)
    for before, after in pairwise(found):
        assert before.travel is not after.travel
