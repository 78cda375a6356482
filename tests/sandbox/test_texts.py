"""Encodings by byte order mark: what is shown, and that all else comes back as it was."""

import codecs
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.guest.refusal import Refusal
from sandbox.guest.texts import Decoder, Text, is_utf8, mark_of
from sandbox.wire import RefusalCode

MARKS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@settings(deadline=None)
@given(words, st.sampled_from(sorted(MARKS)), st.integers(1, 7))
def test_a_file_of_any_encoding_is_shown_and_comes_back(text: str, encoding: str, step: int) -> None:
    content = MARKS[encoding] + text.encode(encoding)
    whole = Text("f", content)
    assert whole.utf8 == text.encode()
    assert whole.back(whole.utf8) == content
    assert whole.back(whole.utf8 + "\u20ac\U0001f600".encode()) == content + "\u20ac\U0001f600".encode(encoding)
    decoder = Decoder("f")
    # Real chunks are large; the mark is never torn.
    chunks = [content[:4], *(content[at : at + step] for at in range(4, len(content), step))]
    passed = b"".join(decoder.add(chunk) for chunk in chunks) + decoder.add(b"", is_last=True)
    assert passed.removeprefix(codecs.BOM_UTF8) == text.encode()


def is_refused(act: Callable[[], object]) -> bool:
    """Whether something is refused as no text."""
    try:
        act()
    except Refusal as refused:
        return refused.code is RefusalCode.BINARY_FILE
    return False


def decoded(content: bytes) -> bytes:
    decoder = Decoder("f")
    return decoder.add(content) + decoder.add(b"", is_last=True)


@given(st.sampled_from([b"", *MARKS.values()]), st.binary(max_size=60))
def test_whatever_the_bytes_are_they_come_back_or_are_refused(mark: bytes, tail: bytes) -> None:
    content = mark + tail
    if is_refused(lambda: Text("f", content)):
        assert is_refused(lambda: decoded(content))
    else:
        whole = Text("f", content)
        assert whole.back(whole.utf8) == content
        assert decoded(content).removeprefix(codecs.BOM_UTF8) == whole.utf8.removeprefix(codecs.BOM_UTF8)


@pytest.mark.parametrize(
    "content", [b"\xff\xfea", b"\xff\xfe\x00\xd8", b"\xfe\xff\xdc\x00\x00a", b"\xff\xfe\0\0a\0\0\0"]
)
def test_what_is_not_what_its_mark_says_is_binary(content: bytes) -> None:
    assert is_refused(lambda: Text("f", content))


def test_a_file_without_a_mark_is_taken_as_it_is() -> None:
    assert mark_of("f", b"caf\xe9") == (b"", "")
    assert Text("f", b"caf\xe9").back(b"caf\xe9!") == b"caf\xe9!"


def test_an_encoding_without_such_a_text_refuses_it() -> None:
    with pytest.raises(Refusal) as refused:
        Text("f", b"\xff\xfea\0").back(b"\xff")
    assert refused.value.code is RefusalCode.INVALID_PARAM


@given(st.binary(max_size=40), st.integers(0, 3))
def test_validity_is_what_a_decoder_says(tail: bytes, letters: int) -> None:
    for content in (tail, b"\xe2\x82\xac" * 400_000 + b"a" * letters + tail):
        try:
            content.decode()
            assert is_utf8(content)
        except UnicodeDecodeError:
            assert not is_utf8(content)
