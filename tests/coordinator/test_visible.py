"""Hostile text on its way to a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.visible import MOST_BLANKS, visible, visible_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith tabs", "plain text\n\twith tabs"),
        ("grüße 你好　😀", "grüße 你好　😀"),
        ("\x1b[2J\x1b]52;c;aGk=\x07", "␛[2J␛]52;c;aGk=␇"),
        ("safe\rrm -rf /", "safe␍rm -rf /"),
        ("a\b\x00\x7f\x9b", "a␈␀␡⟨U+009B⟩"),
        ("\u202eevil\u2066\u200f", "⟨U+202E⟩evil⟨U+2066⟩⟨U+200F⟩"),
        ("r\u200bm\ufeff\u2028", "r⟨U+200B⟩m⟨U+FEFF⟩⟨U+2028⟩"),
        ("tag \U000e0041", "tag ⟨U+E0041⟩"),
        ("\ud83d", "⟨U+D83D⟩"),
        ("ls" + " " * 10_000 + "; rm x", "ls ⟨10000 blanks⟩ ; rm x"),
        ("ls" + "\u00a0" * 10_000 + "; rm x", "ls ⟨10000 blanks⟩ ; rm x"),
        ("a" + "\n" * 1000 + "b", "a\n⟨999 empty lines⟩\nb"),
        (" " * MOST_BLANKS, " " * MOST_BLANKS),
    ],
)
def test_what_could_deceive_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_acts_upon_is_left(text: str) -> None:
    kinds = {unicodedata.category(char) for char in visible(text) if char not in "\n\t"}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    visible(text).encode()


@given(st.text(), st.integers(2, 80))
def test_a_line_is_one_line_and_no_longer_than_asked(text: str, width: int) -> None:
    line = visible_line(text, width)
    assert "\n" not in line
    assert len(line) <= width


def test_what_a_line_leaves_out_is_marked() -> None:
    assert visible_line("one\ntwo", 20) == "one⏎two"
    assert visible_line("x" * 100, 10) == "x" * 9 + "…"
    assert visible_line("x" * 1_000_000, 10) == "x" * 9 + "…"
    assert visible_line("a" + " " * 400 + "rm", 40).endswith("…")
