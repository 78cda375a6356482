"""Replacements in bytes: found, refused, applied, shown as a diff that patches."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest import edits, nearest
from sandbox.guest.refusal import Refusal
from sandbox.wire import RefusalCode


def edit(content: bytes, *wanted: tuple[str, str] | tuple[str, str, bool]) -> bytes:
    triples = [[*pair, False][:3] for pair in wanted]
    return edits.apply(content, edits.plan(content, edits.parse(json.dumps(triples).encode())))


def refusal(content: bytes, *wanted: tuple[str, str] | tuple[str, str, bool]) -> Refusal:
    with pytest.raises(Refusal) as refused:
        edit(content, *wanted)
    return refused.value


def test_all_edits_are_found_in_the_original() -> None:
    assert edit(b"a b c", ("a", "b"), ("b", "c"), ("c", "a")) == b"b c a"


def test_overlapping_finds_count() -> None:
    refused = refusal(b"aaa", ("aa", "b"))
    assert refused.code is RefusalCode.NOT_UNIQUE
    assert "2 times" in refused.message


def test_replace_all_replaces_from_the_left() -> None:
    assert edit(b"aaa aa", ("aa", "b", True)) == b"ba b"


def test_a_text_that_is_not_there_is_refused_with_a_hint_when_blanks_differ() -> None:
    assert refusal(b"x = 1\n", ("y", "z")).code is RefusalCode.NO_MATCH
    assert "blanks" in refusal(b"if x:\n    y\n", ("if x:\n  y", "z")).message


CODE = b"def one():\n    return 1\n\n\ndef two():\n    value = load(2)\n    return value\n"


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("def two():\n    value = load(3)", "the nearest begins at line 5; line 6 is `    value = load(2)`, not `"),
        ("    value = laod(2)", "the nearest is line 6: `    value = load(2)`"),
        ("value = load(2)\n\treturn value", "lines 6 to 7 would match but for blanks at the ends of lines"),
        ("     5\tdef two():\n     6\t    value", "it seems to hold Read's line numbers, leave them out"),
        ("    return value\nmore", "line 8 is ``, not `more`"),
        ("    return value\n\nmore", "begins at line 7, but the file has no such lines around it"),
        ("t w o ( ) :", "it would match but for blanks and newlines"),
    ],
)
def test_a_text_that_is_not_found_gets_the_nearest_place(old: str, hint: str) -> None:
    refused = refusal(CODE, (old, "x"))
    assert refused.code is RefusalCode.NO_MATCH
    assert hint in refused.message


def test_where_nothing_is_near_nothing_is_said() -> None:
    assert refusal(CODE, ("entirely different words", "x")).message == "edit 1: the old text is not in the file"
    assert refusal(b"", ("x", "y")).message == "edit 1: the old text is not in the file"


HOSTILE = [
    b"a b " * 500_000,
    b"a" * 2_000_000,
    b"\n" * 2_000_000,
    b"ab\n" * 700_000,
    (b"a" * 159 + b"\n") * 12_000,
    b"}\n" * 1_000_000,
]


@pytest.mark.parametrize("content", HOSTILE, ids=["words", "line", "empty", "short", "alike", "braces"])
@pytest.mark.parametrize("old", ["a" * 158 + "b", "}\n" * 5_000 + "x", "ab\n" * 500 + "b", "zz" * 100_000])
def test_the_hint_looks_at_a_bounded_part(content: bytes, old: str) -> None:
    """Ends at all: what compares everything with everything would go on for hours."""
    hint = nearest.nearest(content, old.encode())
    assert len(hint) < 1_000


@given(
    texts_ := st.lists(st.sampled_from([b"a", b"b ", b"\n", b"\r\n", b"\xe9", b"xyz"]), max_size=40).map(b"".join),
    texts_,
)
def test_a_hint_names_a_line_of_the_file(content: bytes, old: bytes) -> None:
    for number in re.findall(r"(?:line|lines) (\d+)", nearest.nearest(content, old)):
        assert 1 <= int(number) <= content.count(b"\n") + 1


def test_of_very_many_occurrences_no_exact_count_is_told() -> None:
    assert "1000 times" in refusal(b"ab" * 1_000, ("ab", "x")).message
    assert "more than 1000 times" in refusal(b"ab" * 1_001, ("ab", "x")).message
    assert "more than 16 times" in refusal(b"a" * 5_000_000, ("a" * 1_000_000, "x")).message


def test_more_replacements_than_a_call_makes_are_refused() -> None:
    assert refusal(b"a" * 20_001, ("a", "b", True)).code is RefusalCode.TOO_LARGE
    assert edit(b"a" * 20_000, ("a", "b", True)) == b"b" * 20_000
    assert refusal(b"a", *[("a", "b")] * 501).code is RefusalCode.INVALID_PARAM


def test_letters_beyond_ascii_come_into_utf8_only() -> None:
    assert refusal(b"caf\xe9 = 1\n", ("= 1", "= \u20ac")).code is RefusalCode.INVALID_PARAM
    assert edit("café = 1\n".encode(), ("= 1", "= \u20ac")) == "café = \u20ac\n".encode()
    # What was found as UTF-8 is UTF-8, whatever stands elsewhere.
    assert edit("\u00fc".encode() + b"\xff", ("\u00fc", "\u20ac")) == "\u20ac".encode() + b"\xff"


def expected(text: str, wanted: list[tuple[str, str, bool]]) -> str | RefusalCode:
    """What plain Python makes of it: a text, or why not."""
    owners: list[int | None] = [None] * len(text)
    begins: dict[int, str] = {}
    for number, (old, new, replace_all) in enumerate(wanted):
        places = [at for at in range(len(text)) if text.startswith(old, at)]
        if not places:
            return RefusalCode.NO_MATCH
        if len(places) > 1 and not replace_all:
            return RefusalCode.NOT_UNIQUE
        end = 0
        for place in places:
            if place >= end:
                end = place + len(old)
                if any(owner is not None for owner in owners[place:end]):
                    # All are looked for before they are held against each other.
                    rest = expected(text, wanted[number + 1 :])
                    return rest if rest in {RefusalCode.NO_MATCH, RefusalCode.NOT_UNIQUE} else RefusalCode.OVERLAP
                owners[place:end] = [number] * len(old)
                begins[place] = new
    return "".join(begins.get(at, "" if owner is not None else text[at]) for at, owner in enumerate(owners))


letters = st.text("ab\n", min_size=1, max_size=3)


@given(
    st.text("ab\n", max_size=12),
    st.lists(st.tuples(letters, st.text("ab\n\u20ac", max_size=3), st.booleans()), min_size=1, max_size=3),
)
def test_edits_do_what_plain_python_does(text: str, wanted: list[tuple[str, str, bool]]) -> None:
    wanted = [one for one in wanted if one[0] != one[1]] or [("a", "c", True)]
    try:
        made: str | RefusalCode = edit(text.encode(), *wanted).decode()
    except Refusal as refused:
        made = refused.code
    assert made == expected(text, wanted)


def test_edits_of_the_same_text_are_refused() -> None:
    assert refusal(b"abc", ("ab", "x"), ("bc", "y")).code is RefusalCode.OVERLAP
    assert refusal(b"abc", ("ab", "x"), ("ab", "y")).code is RefusalCode.OVERLAP


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"[[]]", b"[[1,2,3]]", b'[["","x",false]]', b'[["x","x",false]]'])
def test_edits_that_make_no_sense_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        edits.parse(body)
    assert refused.value.code is RefusalCode.INVALID_PARAM


def test_lf_text_matches_a_crlf_file_which_stays_crlf() -> None:
    assert edit(b"a\r\nb\r\nc\r\n", ("a\nb\n", "x\ny\nz\n")) == b"x\r\ny\r\nz\r\nc\r\n"
    assert edit(b"a\r\nb\r\n", ("b", "b\nc")) == b"a\r\nb\r\nc\r\n"


def test_a_file_of_mixed_newlines_keeps_those_that_are_not_edited() -> None:
    assert edit(b"a\r\nb\nc\r\n", ("b\n", "x\n")) == b"a\r\nx\nc\r\n"


def test_other_bytes_stay_as_they_were() -> None:
    assert edit(b"caf\xe9 = 1\n\x0c\xff\n", ("= 1", "= 2")) == b"caf\xe9 = 2\n\x0c\xff\n"


texts = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\n", b"\r\n", b"\xe9", b"xyz"]), max_size=60).map(b"".join)


@given(texts, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 6), texts), max_size=6))
def test_the_diff_patches_the_old_into_the_new(content: bytes, places: list[tuple[int, int, bytes]]) -> None:
    spans: list[edits.Span] = []
    for start, size, new in sorted(places):
        begin = min(start, len(content))
        end = min(begin + size, len(content))
        if end > begin and (not spans or begin >= spans[-1].end):
            spans.append(edits.Span(begin, end, new))
    diff, is_cut = edits.unified(content, spans)
    assert not is_cut
    assert patched(content, diff) == edits.apply(content, spans)


def patched(content: bytes, diff: bytes) -> bytes:
    """What a strict patch program makes of it."""
    old = content.split(b"\n")
    old = [line + b"\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    new: list[bytes] = []
    position = 0
    lines = diff.split(b"\n")[:-1]
    at = 0
    while at < len(lines):
        header = re.fullmatch(rb"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", lines[at])
        assert header is not None, lines[at]
        start, count, new_start, new_count = (int(part) for part in header.groups())
        new += old[position : start - 1]
        position = start - 1
        assert len(new) == new_start - 1
        at += 1
        taken_old = taken_new = 0
        while at < len(lines) and not lines[at].startswith(b"@@ "):
            kind, text = lines[at][:1], lines[at][1:] + b"\n"
            if at + 1 < len(lines) and lines[at + 1].startswith(b"\\ No newline"):
                text = text[:-1]
                at += 1
            at += 1
            if kind in b" -":
                assert old[position] == text
                position += 1
                taken_old += 1
            if kind in b" +":
                new.append(text)
                taken_new += 1
        assert (taken_old, taken_new) == (count, new_count)
    return b"".join(new + old[position:])


def test_very_long_lines_are_shown_around_what_changed() -> None:
    content = b"x" * 3_000_000 + b"needle" + b"y" * 3_000_000 + b"\nshort\n"
    diff, is_cut = edits.unified(content, edits.plan(content, edits.parse(b'[["needle","pin",false]]')))
    assert not is_cut
    assert b"needle" in diff
    assert b"+[...]" + b"x" * 200 + b"piny" in diff
    assert b"\n short\n" in diff
    assert len(diff) < 3_000


def test_many_replacements_in_one_line_are_one_change() -> None:
    content = b"a," * 20_000
    diff, _ = edits.unified(content, edits.plan(content, edits.parse(b'[["a","b",true]]')))
    assert diff.startswith(b"@@ -1,1 +1,1 @@\n-a,a")


def test_a_large_diff_is_cut() -> None:
    content = b"line\n" * 10_000
    wanted = edits.parse(json.dumps([["line", "other", True]]).encode())
    diff, is_cut = edits.unified(content, edits.plan(content, wanted))
    assert is_cut
    assert len(diff) == edits.MAX_DIFF_BYTES
