"""Events out of bytes, however they are cut."""

import pytest

from coordinator.endpoint.sse import MAX_EVENT_BYTES, SseDecoder, SseTooLarge


def decoded(*received: bytes) -> list[str]:
    decoder = SseDecoder()
    return [data for piece in received for data in decoder.feed(piece)] + decoder.close()


def test_lines_may_end_in_lf_crlf_or_cr() -> None:
    assert decoded(b"data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\n") == ["a", "b", "c", "d"]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    assert decoded(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\ndata: c\n\n") == ["a\nb", "c"]


def test_several_data_lines_are_one_event() -> None:
    assert decoded(b"data: a\ndata:b\ndata\n\n") == ["a\nb\n"]


def test_comments_names_and_hints_are_dropped() -> None:
    assert decoded(b": keep-alive\n\nevent: x\nid: 1\nretry: 5\ndata: a\n\n:\n\n") == ["a"]


def test_a_character_cut_in_the_middle_is_whole() -> None:
    whole = "data: é😀\n\n".encode()
    assert decoded(*(whole[at : at + 1] for at in range(len(whole)))) == ["é😀"]


def test_the_last_event_needs_no_blank_line_and_no_line_end() -> None:
    assert decoded(b"data: a\n\ndata: b") == ["a", "b"]
    assert decoded(b"data: a\n\ndata: b\n") == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert decoded(b"\xef\xbb\xbfdata: a\n\n") == ["a"]


def test_other_separators_are_text() -> None:
    assert decoded("data: a\u2028b\x0bc\x85\n\n".encode()) == ["a\u2028b\x0bc\x85"]


def test_an_event_that_does_not_end_is_refused() -> None:
    decoder = SseDecoder()
    decoder.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 6))
    with pytest.raises(SseTooLarge):
        decoder.feed(b"x")
