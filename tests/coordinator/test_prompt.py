"""The system message says what the session's rules are, and nothing that is not so."""

import pytest

from coordinator.session.prompt import PromptFacts, system_prompt


def test_a_copy_and_a_bound_directory_are_told_apart() -> None:
    assert "private copy" in system_prompt(PromptFacts("boxed", True, 5))
    assert "your changes become a patch" in system_prompt(PromptFacts("boxed", True, 5))
    assert "the user's own directory" in system_prompt(PromptFacts("boxed", False, 5))
    assert "patch" not in system_prompt(PromptFacts("boxed", False, 5))


def test_the_policies_are_told_apart() -> None:
    guarded, boxed = (system_prompt(PromptFacts(policy, False, 5)) for policy in ("guarded", "boxed"))

    assert "asked of a human" in guarded
    assert "may run any command" not in guarded
    assert "may run any command" in boxed
    assert "asked of a human" not in boxed


def test_rules_and_reading_only_are_said() -> None:
    assert "The user's policy allows some" in system_prompt(PromptFacts("boxed", False, 5, has_rules=True))
    only_reads = system_prompt(PromptFacts("boxed", False, 5, is_read_only=True))
    assert "You may only read" in only_reads
    assert "may run any command" not in only_reads


@pytest.mark.parametrize("steps", [1, 40])
def test_the_number_of_replies_is_said(steps: int) -> None:
    assert f"at most {steps} replies" in system_prompt(PromptFacts("boxed", False, steps))


def test_the_same_facts_give_the_same_bytes() -> None:
    assert system_prompt(PromptFacts("boxed", True, 5)) == system_prompt(PromptFacts("boxed", True, 5))
