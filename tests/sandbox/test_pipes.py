"""The host's end of a pipe against a guest that breaks the rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.pipes import Listener, Pipe, PipeBroken, PipeEnd, Pipes, Tty
from sandbox.wire import STREAM_CHUNK_BYTES, STREAM_WINDOW, BadStreamFrame, Frame, PipeOp, stream_cost


class Sent:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[tuple[dict[str, Any], bytes]] = []
        self.ends: list[PipeEnd] = []
        self.data = b""
        self.pipes = Pipes(lambda head, body: self.frames.append((head, body)))
        self.pipe = self.pipes.new(Listener(self._add, self.ends.append))

    def _add(self, data: bytes) -> None:
        self.data += data

    def says(self, do: str, body: bytes = b"", **more: Any) -> None:
        self.pipes.take(Frame({"pipe_id": self.pipe.number, "do": do, **more}, body))


@pytest.mark.parametrize(
    "head",
    [
        {"pipe_id": 2, "do": "data"},
        {"pipe_id": "1", "do": "data"},
        {"pipe_id": True, "do": "data"},
        {"pipe_id": 1, "do": "open"},
        {"pipe_id": 1},
        {"pipe_id": 1, "do": "credit", "n": 1},
        {"pipe_id": 1, "do": "credit", "n": -1},
        {"pipe_id": 1, "do": "credit", "n": 1.5},
        {"pipe_id": 1, "do": "credit"},
        # Only a connection ends in one direction, and errors come of those that were asked for them.
        {"pipe_id": 1, "do": "end"},
        {"pipe_id": 1, "do": "errors"},
        {"pipe_id": 1, "do": "resize", "rows": 1, "cols": 1},
        {"pipe_id": 1, "do": "close"},
        {"pipe_id": 1, "do": "close", "exit_code": 256},
        {"pipe_id": 1, "do": "close", "signal": "9"},
    ],
)
def test_a_frame_that_no_guest_of_ours_sends_is_a_violation(head: dict[str, Any]) -> None:
    with pytest.raises(BadStreamFrame):
        Sent().pipes.take(Frame(head, b""))


def test_more_than_the_window_is_a_violation_and_taking_makes_room() -> None:
    sent = Sent()
    chunk = b"x" * STREAM_CHUNK_BYTES
    most = STREAM_WINDOW // stream_cost(len(chunk))
    for _ in range(most):
        sent.says(PipeOp.DATA, chunk)
    sent.pipe.took(stream_cost(len(chunk)))
    assert sent.frames == [({"pipe_id": 1, "do": PipeOp.CREDIT, "n": stream_cost(len(chunk))}, b"")]
    sent.says(PipeOp.DATA, chunk)
    with pytest.raises(BadStreamFrame):
        sent.says(PipeOp.DATA, chunk)
    # Room is never made for what did not come.
    sent.pipe.took(10**9)
    assert sent.frames[-1][0]["n"] == most * stream_cost(len(chunk)) + stream_cost(len(chunk))


def test_who_writes_waits_for_room_and_hears_of_the_end() -> None:
    sent = Sent()
    with pytest.raises(PipeBroken, match="does not read"):
        sent.pipe.write(b"x" * STREAM_WINDOW * 2, timeout_s=0.01)
    used = sum(stream_cost(len(body)) for _, body in sent.frames)
    assert used <= STREAM_WINDOW
    sent.says(PipeOp.CREDIT, n=used)
    sent.pipe.write(b"more", timeout_s=0.01)
    sent.says(PipeOp.CLOSE, b"bad\xff", exit_code=3)
    assert sent.ends == [PipeEnd("it ended with exit code 3", "bad\ufffd", exit_code=3)]
    with pytest.raises(PipeBroken, match="exit code 3"):
        sent.pipe.write(b"more", timeout_s=0.01)
    # What is on its way for a pipe that is closed is of no account.
    sent.says(PipeOp.DATA, b"late")
    sent.pipes.close()
    assert len(sent.ends) == 1


def test_the_end_of_the_link_is_the_end_of_its_pipes() -> None:
    def broken(head: dict[str, Any], body: bytes) -> None:
        raise OSError("gone")

    ends: list[PipeEnd] = []
    pipes = Pipes(broken)
    pipe: Pipe = pipes.new(Listener(lambda _: None, ends.append))
    with pytest.raises(PipeBroken, match="link"):
        pipe.write(b"x", timeout_s=1)
    pipes.close()
    assert ends[0].words == "the link to the box is gone"


class Connected:
    """A connection into a box, and what is heard of it."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.pipes = Pipes(lambda head, body: None)
        self.pipe = self.pipes.new(
            Listener(
                self.heard.append,
                self.heard.append,
                on_eof=lambda: self.heard.append("eof"),
                on_credit=self.heard.append,
            )
        )

    def says(self, do: str, body: bytes = b"", **more: Any) -> None:
        self.pipes.take(Frame({"pipe_id": 1, "do": do, **more}, body))


def test_a_connection_ends_in_each_direction_once_and_says_no_more() -> None:
    there = Connected()
    there.says(PipeOp.DATA, b"a")
    there.pipe.write(b"x" * 100, 0)
    there.says(PipeOp.CREDIT, n=100)
    there.says(PipeOp.END)
    for do in (PipeOp.END, PipeOp.DATA):
        with pytest.raises(BadStreamFrame):
            there.says(do)
    there.says(PipeOp.CLOSE)
    assert there.heard == [b"a", 100, "eof", PipeEnd("the connection was closed", "")]
    broken = Connected()
    broken.says(PipeOp.CLOSE, error="Connection reset by peer")
    assert broken.heard == [PipeEnd("the connection broke: Connection reset by peer", "")]


def test_errors_come_beside_the_output_and_share_its_window() -> None:
    heard: list[tuple[str, bytes]] = []
    frames: list[dict[str, Any]] = []
    pipes = Pipes(lambda head, body: frames.append(head))
    listener = Listener(
        lambda data: heard.append(("out", data)), lambda _: None, on_errors=lambda data: heard.append(("err", data))
    )
    pipe = pipes.new(listener)
    pipes.take(Frame({"pipe_id": 1, "do": PipeOp.DATA}, b"a"))
    pipes.take(Frame({"pipe_id": 1, "do": PipeOp.ERRORS}, b"b"))
    assert heard == [("out", b"a"), ("err", b"b")]
    for _ in range((STREAM_WINDOW - 2 * stream_cost(1)) // stream_cost(0)):
        pipes.take(Frame({"pipe_id": 1, "do": PipeOp.ERRORS}, b""))
    with pytest.raises(BadStreamFrame):
        pipes.take(Frame({"pipe_id": 1, "do": PipeOp.ERRORS}, b""))
    pipe.resize(Tty(24, 80))
    assert frames == [{"pipe_id": 1, "do": PipeOp.RESIZE, "rows": 24, "cols": 80}]


words = st.text(max_size=3) | st.integers() | st.none() | st.booleans()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*PipeOp, "open", "", 1]),
            st.dictionaries(st.sampled_from(["n", "exit_code", "signal", "error"]), words, max_size=3),
            st.binary(max_size=20),
        ),
        max_size=20,
    )
)
def test_whatever_a_guest_says_is_taken_or_a_violation(said: list[tuple[object, dict[str, Any], bytes]]) -> None:
    there = Connected()
    try:
        for do, head, body in said:
            there.pipes.take(Frame({"pipe_id": 1, "do": do, **head}, body))
    except BadStreamFrame:
        pass
    ends = [one for one in there.heard if isinstance(one, PipeEnd)]
    assert len(ends) <= 1
    assert not ends or there.heard[-1] == ends[0]
