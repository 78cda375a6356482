"""The host's end of a pipe against a guest that breaks the rules."""

from typing import Any

import pytest

from sandbox.pipes import Pipe, PipeBroken, PipeEnd, Pipes
from sandbox.wire import STREAM_CHUNK_BYTES, STREAM_WINDOW, BadStreamFrame, Frame, PipeOp, stream_cost


class Sent:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[tuple[dict[str, Any], bytes]] = []
        self.ends: list[PipeEnd] = []
        self.data = b""
        self.pipes = Pipes(lambda head, body: self.frames.append((head, body)))
        self.pipe = self.pipes.new(self._add, self.ends.append)

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
    assert sent.ends == [PipeEnd("it ended with exit code 3", "bad\ufffd")]
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
    pipe: Pipe = pipes.new(lambda _: None, ends.append)
    with pytest.raises(PipeBroken, match="link"):
        pipe.write(b"x", timeout_s=1)
    pipes.close()
    assert ends[0].words == "the link to the box is gone"
