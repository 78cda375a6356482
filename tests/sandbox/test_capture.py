"""What is kept of output."""

from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.capture import Capture


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(0, 40))
def test_head_tail_and_counts_are_those_of_the_whole(chunks: list[bytes], keep: int) -> None:
    capture = Capture(keep)
    for chunk in chunks:
        capture.add(chunk)
    whole = b"".join(chunks)
    head, tail = capture.parts()
    summary = capture.summary(head, tail)
    assert summary["bytes"] == len(whole)
    assert summary["lines"] == whole.count(b"\n") + (whole != b"" and not whole.endswith(b"\n"))
    assert (summary["head"], summary["tail"]) == (len(head), len(tail))
    assert summary["dropped"] == len(whole) - len(head) - len(tail)
    if len(whole) <= 2 * keep:
        assert (head, tail) == (whole, b"")
    else:
        assert (head, tail) == (whole[:keep], whole[len(whole) - keep :])
