"""Replacements in bytes: found, refused, applied, shown as a diff that patches."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest import edits
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


def test_a_large_diff_is_cut() -> None:
    content = b"line\n" * 10_000
    wanted = edits.parse(json.dumps([["line", "other", True]]).encode())
    diff, is_cut = edits.unified(content, edits.plan(content, wanted))
    assert is_cut
    assert len(diff) == edits.MAX_DIFF_BYTES
