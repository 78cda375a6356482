import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cutting import count_lines, cut_line, cut_text, shorten_value

HINT = "; all of it: /spill/1.txt"


@given(st.text(), st.integers(0, 2_000), st.sampled_from(["", HINT]))
def test_a_cut_is_never_over_its_limit_and_keeps_order(text: str, limit_bytes: int, hint: str) -> None:
    cut = cut_text(text, limit_bytes, hint=hint)
    raw = text.encode()
    assert len(cut.text.encode()) <= limit_bytes or cut.text == text
    assert len(cut.text.encode()) <= max(limit_bytes, len(raw))
    assert cut.total_bytes == len(raw)
    assert cut.total_lines == count_lines(raw)
    assert cut.is_cut == (len(raw) > limit_bytes)


LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=60), min_size=30, max_size=200)


@given(lines=LINES, limit_bytes=st.integers(300, 3_000))
def test_a_cut_shows_a_head_and_a_tail_of_the_original(lines: list[str], limit_bytes: int) -> None:
    text = "\n".join(lines)
    cut = cut_text(text, limit_bytes, hint=HINT)
    if not cut.is_cut:
        assert cut.text == text
        return
    assert HINT in cut.text
    gap = next(line for line in cut.text.split("\n") if line.startswith("[… ") and line.endswith(f"{HINT} …]"))
    head, tail = cut.text.split(gap, 1)
    assert text.startswith(head.removesuffix("\n"))
    assert text.endswith(tail.removeprefix("\n"))
    hidden = int(gap.split()[1])
    assert hidden + cut.shown_bytes == cut.total_bytes == len(text.encode())


@pytest.mark.parametrize("surplus_bytes", [1, 1_000, 1_000_000])
@pytest.mark.parametrize("line", ["x\n", "a line of ordinary length in a log file\n", "é" * 5_000 + "\n", "y"])
def test_a_text_over_the_limit_shows_nearly_the_limit(line: str, surplus_bytes: int) -> None:
    limit_bytes = 50_000
    size = limit_bytes + surplus_bytes
    text = (line * (size // len(line.encode()) + 1)).encode()[:size].decode(errors="ignore") + "z"
    cut = cut_text(text, limit_bytes, hint=HINT)
    assert limit_bytes * 0.88 < len(cut.text.encode()) <= limit_bytes


def test_a_cut_between_short_lines_leaves_whole_lines() -> None:
    text = "".join(f"line {number}\n" for number in range(1_000))
    cut = cut_text(text, 2_000)
    shown = [line for line in cut.text.splitlines() if not line.startswith("[…")]
    assert all(f"{line}\n" in text for line in shown)
    assert shown[0] == "line 0"
    assert shown[-1] == "line 999"
    assert cut.shown_lines == len(shown)


def test_form_feed_and_line_separator_are_no_line_ends() -> None:
    assert count_lines("a\fb\u2028c\n".encode()) == 1


def test_a_long_line_ends_in_a_note_of_its_length() -> None:
    assert cut_line("x" * 10, 10) == "x" * 10
    assert cut_line("x" * 11, 10) == "x" * 10 + " [… line cut: 11 characters in all]"


def test_a_huge_argument_is_echoed_short() -> None:
    assert len(str(shorten_value("x" * 120_000))) < 300


SCALARS = st.none() | st.booleans() | st.text() | st.integers()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_value_is_shortened_to_a_bound(value: object) -> None:
    assert len(str(shorten_value(value, limit_chars=20))) < 20_000
