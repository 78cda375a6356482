"""The engine's framing of an exec's streams is taken out, whatever the chunks."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.engine_stream import ExecStream


class Connection:
    """What the Docker client gives: an object around a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def close(self) -> None:
        self._sock.close()


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30))), st.integers(1, 40))
def test_standard_output_comes_out_whole(pieces: list[tuple[int, bytes]], step: int) -> None:
    data = b"".join(struct.pack(">BxxxI", kind, len(piece)) + piece for kind, piece in pieces)
    ours, theirs = socket.socketpair()
    stream = ExecStream(Connection(ours))
    got = b""
    for start in range(0, len(data), step):
        got += stream._split(data[start : start + step])
    stream.close()
    theirs.close()
    assert got == b"".join(piece for kind, piece in pieces if kind == 1)
    assert stream.errors == b"".join(piece for kind, piece in pieces if kind == 2)[:2000]


def test_the_end_of_the_connection_is_empty_bytes() -> None:
    ours, theirs = socket.socketpair()
    stream = ExecStream(Connection(ours))
    theirs.sendall(struct.pack(">BxxxI", 1, 2) + b"\0\1")
    theirs.close()
    assert stream.recv() == b"\0\1"
    assert stream.recv() == b""
    stream.close()


def test_what_the_engine_says_instead_of_the_relay_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    stream = ExecStream(Connection(ours))
    theirs.sendall(struct.pack(">BxxxI", 1, 23) + b"OCI runtime exec failed")
    with pytest.raises(ConnectionError, match="exec failed"):
        stream.recv()
    stream.close()
    theirs.close()


def test_a_guest_that_takes_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.socket_stream.SEND_TIMEOUT_S", 1)
    ours, theirs = socket.socketpair()
    stream = ExecStream(Connection(ours))
    with pytest.raises(BlockingIOError):
        stream.send_all(bytes(10_000_000))
    stream.close()
    theirs.close()
