"""Keys on their way into a box: what is passed on, and what leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.commands.raw_terminal import Escapes


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        (b"ls\r", b"ls\r", False),
        (b"~.", b"", True),
        (b"ls\r~.more", b"ls\r", True),
        (b"a~.", b"a~.", False),
        (b"~~.", b"~.", False),
        (b"~x", b"~x", False),
        (b"cd ~\r~/bin\r", b"cd ~\r~/bin\r", False),
    ],
)
def test_only_a_tilde_and_a_dot_at_the_beginning_of_a_line_leave(typed: bytes, passed: bytes, leaves: bool) -> None:
    assert Escapes().take(typed) == (passed, leaves)
    one_by_one = Escapes()
    took = [one_by_one.take(typed[index : index + 1]) for index in range(len(typed))]
    assert any(left for _, left in took) == leaves
    assert b"".join(keys for keys, _ in took).startswith(passed)


@given(st.binary(max_size=40).filter(lambda typed: b"~" not in typed))
def test_all_else_is_passed_on_as_it_is(typed: bytes) -> None:
    assert Escapes().take(typed) == (typed, False)
