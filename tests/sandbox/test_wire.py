"""Frames: whole through any chunking, refused when they are none."""

import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.wire import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    Decoder,
    Frame,
    FrameError,
    FrameTooLarge,
    MalformedFrame,
    encode,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
frames = st.builds(Frame, st.dictionaries(st.text(), json_values, max_size=4), st.binary(max_size=300))


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(frames, max_size=5), st.lists(st.integers(min_value=0), max_size=20))
def test_frames_come_out_as_they_went_in_whatever_the_chunks(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode(frame.head, frame.body) for frame in sent)
    decoder = Decoder()
    got = [frame for chunk in chunks_of(data, cuts) for frame in decoder.feed(chunk)]
    assert got == sent
    assert decoder.buffered_bytes == 0


@given(st.lists(frames, min_size=1, max_size=3), st.integers(min_value=1, max_value=500))
def test_a_cut_frame_is_not_given_out(sent: list[Frame], missing: int) -> None:
    data = b"".join(encode(frame.head, frame.body) for frame in sent)
    assert len(Decoder().feed(data[: max(0, len(data) - missing)])) < len(sent)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_garbage_is_refused_or_waited_for_and_never_anything_else(chunks: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                assert isinstance(frame.head, dict)
    except FrameError:
        pass


@pytest.mark.parametrize(("head", "body"), [(MAX_HEAD_BYTES + 1, 0), (2, MAX_BODY_BYTES + 1), (2**32 - 1, 2**32 - 1)])
def test_an_announced_size_beyond_the_limit_is_refused_at_once(head: int, body: int) -> None:
    decoder = Decoder()
    with pytest.raises(FrameTooLarge):
        decoder.feed(struct.pack(">II", head, body))


@pytest.mark.parametrize("head", [b"", b"{", b"[]", b"1", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_head_that_is_no_object_is_refused(head: bytes) -> None:
    with pytest.raises(MalformedFrame):
        Decoder().feed(struct.pack(">II", len(head), 0) + head)


@pytest.mark.parametrize(
    ("head", "body"), [({"x": "y" * MAX_HEAD_BYTES}, b""), ({}, b"x" * (MAX_BODY_BYTES + 1))], ids=["head", "body"]
)
def test_a_frame_beyond_the_limits_is_not_made(head: dict[str, Any], body: bytes) -> None:
    with pytest.raises(FrameTooLarge):
        encode(head, body)


def test_the_layout_is_two_lengths_a_compact_head_and_the_body() -> None:
    head = {"id": 1, "op": "ping"}
    text = json.dumps(head, separators=(",", ":")).encode()
    assert encode(head, b"body") == struct.pack(">II", len(text), 4) + text + b"body"
