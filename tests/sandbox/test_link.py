"""The host's end of the link against a guest that breaks every rule."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from sandbox.link import Link, LinkClosed, LinkTimeout
from sandbox.wire import MAX_BODY_BYTES, Decoder, Frame, encode


class SocketStream:
    """One end of a socket pair as a stream."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def recv(self) -> bytes:
        return self._end.recv(65536)

    def send_all(self, data: bytes) -> None:
        self._end.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


class Guest:
    """The other end, played by the test."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    def take(self) -> Frame:
        while not self._frames:
            data = self.end.recv(65536)
            assert data, "the host closed the link"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def say(self, head: dict[str, Any], body: bytes = b"") -> None:
        self.end.sendall(encode(head, body))


@pytest.fixture
def pair() -> Iterator[tuple[Link, Guest]]:
    ours, theirs = socket.socketpair()
    link = Link(SocketStream(ours), "test")
    theirs.settimeout(60)
    yield link, Guest(theirs)
    link.close()
    theirs.close()
    link._reader.join(60)


class Asking:
    """A request under way in a thread."""

    def __init__(self, link: Link, **more: Any) -> None:
        self.outcome: Frame | BaseException | None = None

        def ask() -> None:
            try:
                self.outcome = link.ask({"op": "ping"}, b"", 10, **more)
            except BaseException as error:
                self.outcome = error

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def end(self) -> Frame | BaseException | None:
        self._thread.join(60)
        return self.outcome


def test_answers_find_their_requests_in_any_order(pair: tuple[Link, Guest]) -> None:
    link, guest = pair
    first = Asking(link)
    first_id = guest.take().head["id"]
    second = Asking(link)
    second_id = guest.take().head["id"]
    guest.say({"id": second_id, "n": 2}, b"two")
    guest.say({"id": first_id, "n": 1}, b"one")
    assert first.end() == Frame({"id": first_id, "n": 1}, b"one")
    assert second.end() == Frame({"id": second_id, "n": 2}, b"two")


@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda _: b"garbage that is longer than a header",
        lambda _: struct.pack(">II", 2, MAX_BODY_BYTES + 1),
        lambda _: struct.pack(">II", 2**32 - 1, 0),
        lambda _: struct.pack(">II", 3, 0) + b"[1]",
        lambda _: encode({"id": 99}),
        lambda _: encode({"id": 0}),
        lambda _: encode({"id": True}),
        lambda _: encode({"id": 1.0}),
        lambda _: encode({"id": [1]}),
        lambda _: encode({"id": "1"}),
        lambda _: encode({}),
        lambda request_id: encode({"id": request_id, "event": "out"}, b"never asked for"),
        lambda request_id: encode({"id": request_id, "event": "reboot"}),
    ],
)
def test_a_frame_against_the_rules_closes_the_link(pair: tuple[Link, Guest], bytes_of: Callable[[int], bytes]) -> None:
    link, guest = pair
    asking = Asking(link)
    request_id = guest.take().head["id"]
    guest.end.sendall(bytes_of(request_id))
    outcome = asking.end()
    assert isinstance(outcome, LinkClosed)
    assert outcome.violation
    assert not link.is_open
    with pytest.raises(LinkClosed):
        link.ask({"op": "ping"}, b"", 1)


def test_the_end_of_the_stream_is_no_violation(pair: tuple[Link, Guest]) -> None:
    link, guest = pair
    asking = Asking(link)
    guest.take()
    guest.end.close()
    outcome = asking.end()
    assert isinstance(outcome, LinkClosed)
    assert outcome.violation == ""


def test_an_answer_that_comes_too_late_is_let_pass(pair: tuple[Link, Guest]) -> None:
    link, guest = pair
    with pytest.raises(LinkTimeout):
        link.ask({"op": "ping"}, b"", 0.01)
    late = guest.take().head["id"]
    asking = Asking(link)
    request_id = guest.take().head["id"]
    guest.say({"id": late})
    guest.say({"id": late})
    guest.say({"id": request_id, "n": 1})
    assert asking.end() == Frame({"id": request_id, "n": 1}, b"")


def test_a_flood_that_nobody_asked_for_closes_the_link(pair: tuple[Link, Guest]) -> None:
    link, guest = pair
    with pytest.raises(LinkTimeout):
        link.ask({"op": "ping"}, b"", 0.01)
    late = guest.take().head["id"]
    flood = encode({"id": late}, b"x" * 1_000_000)

    def send_it_all() -> None:
        for _ in range(100):
            guest.end.sendall(flood)

    with pytest.raises(OSError, match=r"(?i)pipe|reset"):
        send_it_all()
    assert not link.is_open


def test_output_goes_to_the_listener_in_order(pair: tuple[Link, Guest]) -> None:
    link, guest = pair
    parts: list[bytes] = []
    asking = Asking(link, on_output=parts.append)
    request_id = guest.take().head["id"]
    for part in (b"a", b"b", b"c"):
        guest.say({"id": request_id, "event": "out"}, part)
    guest.say({"id": request_id})
    assert isinstance(asking.end(), Frame)
    assert parts == [b"a", b"b", b"c"]


def test_a_listener_that_fails_fails_its_own_request_only(pair: tuple[Link, Guest]) -> None:
    link, guest = pair

    def fail(_: bytes) -> None:
        raise OSError("disk full")

    asking = Asking(link, on_output=fail)
    request_id = guest.take().head["id"]
    guest.say({"id": request_id, "event": "out"}, b"a")
    guest.say({"id": request_id})
    assert isinstance(asking.end(), OSError)
    after = Asking(link)
    guest.say({"id": guest.take().head["id"]})
    assert isinstance(after.end(), Frame)


def test_heartbeats_are_answered_into_their_own_place() -> None:
    ours, theirs = socket.socketpair()
    heard: list[dict[str, Any]] = []
    arrived = threading.Event()

    def hear(head: dict[str, Any]) -> None:
        heard.append(head)
        arrived.set()

    link = Link(SocketStream(ours), "test", hear)
    guest = Guest(theirs)
    link.beat()
    frame = guest.take()
    assert frame.head["op"] == "ping"
    guest.say({"id": frame.head["id"], "frozen": True})
    assert arrived.wait(60)
    assert heard[0]["frozen"] is True
    link.close()
    theirs.close()
