"""Marking: all of a text is shown, and only the shower draws marks."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from coordinator.commands.marking import BAR, DOT, marked_lines


def test_the_part_is_marked_below_it() -> None:
    assert marked_lines("ls; rm x", (4, 8), 80) == ["  │ ls; rm x", "  ·     ^^^^"]


def test_a_mark_goes_over_line_ends_and_wrapped_lines() -> None:
    assert marked_lines("a\nbcd\ne", (2, 7), 80) == ["  │ a", "  │ bcd", "  · ^^^", "  │ e", "  · ^"]
    assert marked_lines("0123456789abc", (8, 12), 14) == ["  │ 0123456789", "  ·         ^^", "  │ abc", "  · ^^"]


def test_wide_characters_keep_the_mark_in_its_column() -> None:
    assert marked_lines("火火; rm x", (4, 8), 80)[1] == "  ·       ^^^^"


def test_nothing_is_marked_without_a_part() -> None:
    assert marked_lines("ls", None, 80) == ["  │ ls"]


def test_control_and_bidi_characters_are_visible_and_blanks_hide_nothing() -> None:
    lines = marked_lines("ls \x1b[2K\r\u202e" + " " * 10_000 + "; rm x", (10_009, 10_013), 80)
    text = "\n".join(lines)
    assert "␛[2K␍⟨U+202E⟩" in text
    assert "⟨10000 blanks⟩" in text
    assert "; rm x" in text
    assert not {"\x1b", "\r", "\u202e"} & set(text)


def test_a_text_cannot_draw_a_mark_of_its_own() -> None:
    forged = "ls\n  · ^^\n    rm x"
    lines = marked_lines(forged, None, 80)
    assert all(line.startswith(BAR) for line in lines)


@given(text=st.text(), start=st.integers(0, 50), length=st.integers(0, 50), width=st.integers(1, 100))
def test_every_line_is_within_its_width_and_behind_its_sign(text: str, start: int, length: int, width: int) -> None:
    for line in marked_lines(text, (start, start + length), width):
        assert line.startswith((BAR, DOT))
        assert cell_len(line) <= max(width, len(BAR) + 10)
        assert "\n" not in line
