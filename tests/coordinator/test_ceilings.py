"""Ceilings: what a principal's session may have at most."""

from dataclasses import replace

import pytest

from coordinator.errors import ConfigError
from coordinator.session.ceilings import NO_CEILING, Ceiling, Wants, usable_tools, within
from coordinator.session.limits import Limits
from tools.registry import builtin_registry
from worker.contract.orders import Policy

WANTS = Wants(Policy.BOXED, "box:1", Limits(steps=50))


def test_a_local_user_has_none() -> None:
    assert within(WANTS, NO_CEILING, "local") == WANTS


def test_numbers_and_tools_are_cut_to_it() -> None:
    ceiling = Ceiling(max_steps=10, tools=frozenset({"Read", "Bash"}))
    assert within(WANTS, ceiling, "ann") == Wants(
        Policy.BOXED, "box:1", Limits(steps=10), tools=frozenset({"Read", "Bash"})
    )
    fewer = Wants(Policy.BOXED, "box:1", Limits(steps=5), tools=frozenset({"Read", "Write"}))
    assert within(fewer, ceiling, "ann") == Wants(Policy.BOXED, "box:1", Limits(steps=5), tools=frozenset({"Read"}))


@pytest.mark.parametrize(
    ("ceiling", "said"),
    [
        (Ceiling(policies=frozenset({Policy.GUARDED})), "ann may not use the policy boxed; allowed: guarded"),
        (Ceiling(images=("box:2", "team/*")), "ann may not use the image box:1; allowed: box:2, team/"),
        (Ceiling(images=()), "image box:1; allowed: none"),
        (Ceiling(profiles=frozenset({"small"})), "ann may not use the profile medium; allowed: small"),
    ],
)
def test_what_would_be_another_session_is_refused(ceiling: Ceiling, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        within(WANTS, ceiling, "ann")


def test_who_may_not_make_images_gets_no_set_up() -> None:
    wants = replace(WANTS, makes_image=True)
    assert within(wants, NO_CEILING, "ann") == wants
    assert within(WANTS, Ceiling(may_make_images=False), "ann") == WANTS
    with pytest.raises(ConfigError, match="ann may not use set-up commands or a Dockerfile"):
        within(wants, Ceiling(may_make_images=False), "ann")


def test_an_image_is_allowed_by_name_or_beginning() -> None:
    assert within(WANTS, Ceiling(images=("box:1",)), "ann") == WANTS
    assert within(WANTS, Ceiling(images=("bo*",)), "ann") == WANTS


def test_the_model_sees_what_it_may_use() -> None:
    every = builtin_registry()
    assert usable_tools(every, None, is_read_only=False).names() == every.names()
    assert usable_tools(every, frozenset({"Read", "Nope"}), is_read_only=False).names() == ["Read"]
    reading = ["Bash", "BashOutput", "Glob", "Grep", "KillBash", "Read", "Task", "TodoWrite"]
    assert usable_tools(every, None, is_read_only=True).names() == reading
