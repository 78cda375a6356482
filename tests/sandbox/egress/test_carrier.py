"""The host's end of the streams against a guest that breaks every rule, and against hosts that are slow."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.egress.carrier import Egress
from sandbox.egress.dial import Policy, Refused, dial
from sandbox.egress.limits import Budget, EgressLimits
from sandbox.egress.rules import parse_rules
from sandbox.link import Link
from sandbox.wire import MAX_BODY_BYTES, STREAM_WINDOW, STREAMS_MAX, Frame, StreamOp, stream_cost
from tests.conftest import Until
from tests.sandbox.egress.outside import Echo
from tests.sandbox.test_link import Guest, SocketStream

HELD = threading.Event()


def resolver(name: str) -> list[str]:
    if name == "slow.test":
        HELD.wait(30)
    return ["127.0.0.1"]


class Far:
    """A guest played by the test, and the link that it talks to."""

    def __init__(self, limits: EgressLimits) -> None:
        rules = parse_rules(("site.test:1,80", f"echo.test:{','.join(map(str, range(1, 2)))}", "slow.test"))
        private = frozenset({"site.test", "echo.test", "slow.test"})
        self.egress = Egress("test", Policy(rules, private, resolver=resolver), limits)
        ours, theirs = socket.socketpair()
        theirs.settimeout(60)
        self.link = Link(SocketStream(ours), "test", None, self.egress.carrier)
        self.guest = Guest(theirs)

    def say(self, number: Any, what: Any, body: bytes = b"", **more: Any) -> None:
        self.guest.say({"stream_id": number, "do": what, **more}, body)

    def heard(self, number: int, what: StreamOp) -> Frame:
        while True:
            frame = self.guest.take()
            if frame.head.get("stream_id") == number and frame.head["do"] == what:
                return frame

    def tunnel(self, number: int, port: int) -> None:
        self.egress.policy = Policy(parse_rules((f"echo.test:{port}",)), frozenset({"echo.test"}), resolver=resolver)
        self.say(number, StreamOp.OPEN)
        self.say(number, StreamOp.DATA, f"CONNECT echo.test:{port} HTTP/1.1\r\n\r\n".encode())
        assert self.heard(number, StreamOp.DATA).body.startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def far() -> Iterator[Callable[..., Far]]:
    HELD.clear()
    made: list[Far] = []

    def make(**limits: Any) -> Far:
        made.append(Far(EgressLimits(**limits)))
        return made[-1]

    yield make
    HELD.set()
    for each in made:
        each.link.close()
        each.guest.end.close()
        each.link._reader.join(60)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        yield echo
        echo.shutdown()


OPEN: tuple[Any, Any, bytes, dict[str, Any]] = (1, StreamOp.OPEN, b"", {})


@pytest.mark.parametrize(
    "frames",
    [
        [(0, StreamOp.OPEN, b"", {})],
        [(-1, StreamOp.OPEN, b"", {})],
        [("1", StreamOp.OPEN, b"", {})],
        [(True, StreamOp.OPEN, b"", {})],
        [(1.5, StreamOp.OPEN, b"", {})],
        [(None, StreamOp.OPEN, b"", {})],
        [([1], StreamOp.OPEN, b"", {})],
        [(2**60, StreamOp.OPEN, b"", {})],
        [OPEN, OPEN],
        [(2, StreamOp.OPEN, b"", {}), OPEN],
        [(1, StreamOp.DATA, b"x", {})],
        [OPEN, (2, StreamOp.DATA, b"x", {})],
        [OPEN, (1, "reboot", b"", {})],
        [OPEN, (1, None, b"", {})],
        [OPEN, (1, ["open"], b"", {})],
        [OPEN, (1, StreamOp.CREDIT, b"", {"n": 1})],
        [OPEN, (1, StreamOp.CREDIT, b"", {"n": -1})],
        [OPEN, (1, StreamOp.CREDIT, b"", {"n": 2**70})],
        [OPEN, (1, StreamOp.CREDIT, b"", {"n": "1"})],
        [OPEN, (1, StreamOp.CREDIT, b"", {})],
        [OPEN, (1, StreamOp.DATA, b"x" * STREAM_WINDOW, {})],
        [OPEN, (1, StreamOp.CLOSE, b"", {}), *[(1, StreamOp.DATA, b"", {})] * 400],
        [OPEN, (1, StreamOp.CLOSE, b"", {}), *[(1, StreamOp.CLOSE, b"", {})] * 400],
        [OPEN, (1, StreamOp.CLOSE, b"", {}), *[(1, StreamOp.DATA, b"x" * 8000, {})] * 20],
    ],
)
def test_a_stream_frame_against_the_rules_closes_the_link(
    far: Callable[..., Far], frames: list[tuple[Any, Any, bytes, dict[str, Any]]], until: Until
) -> None:
    there = far()
    for number, what, body, more in frames:
        try:
            there.say(number, what, body, **more)
        except OSError:
            break
    until(lambda: not there.link.is_open, "the link is closed")
    assert there.link._violation


def test_a_box_without_a_way_out_has_no_streams(until: Until) -> None:
    ours, theirs = socket.socketpair()
    link = Link(SocketStream(ours), "test")
    guest = Guest(theirs)
    guest.say({"stream_id": 1, "do": "open"})
    until(lambda: not link.is_open, "the link is closed")
    assert link._violation
    theirs.close()


def test_a_flood_of_frames_is_bounded_while_the_guest_reads_nothing(far: Callable[..., Far], until: Until) -> None:
    there = far()
    # Each refused stream gets an answer, which fills the way back until the carrier stands still.
    there.guest.end.settimeout(60)

    def flood() -> None:
        for number in range(1, 400_000):
            there.say(number, StreamOp.OPEN)
            there.say(number, StreamOp.DATA, b"x\r\n\r\n" * 800)

    with pytest.raises(OSError, match=r"(?i)pipe|reset|timed out"):
        flood()
    until(lambda: not there.link.is_open, "the link is closed")


def test_more_streams_than_allowed_are_refused_one_by_one(far: Callable[..., Far]) -> None:
    there = far()
    for number in range(1, STREAMS_MAX + 2):
        there.say(number, StreamOp.OPEN)
    assert b" 503 " in there.heard(STREAMS_MAX + 1, StreamOp.DATA).body
    there.say(1, StreamOp.DATA, b"GET http://elsewhere.test/ HTTP/1.1\r\n\r\n")
    assert b" 403 " in there.heard(1, StreamOp.DATA).body
    assert there.link.is_open


def test_a_frame_with_a_large_body_is_no_way_round_the_window(far: Callable[..., Far], until: Until) -> None:
    there = far()
    there.say(1, StreamOp.OPEN)

    def push() -> None:
        for _ in range(20):
            there.say(1, StreamOp.DATA, b"x" * MAX_BODY_BYTES)

    with pytest.raises(OSError, match=r"(?i)pipe|reset"):
        push()
    until(lambda: not there.link.is_open, "the link is closed")


def test_a_resolver_that_never_answers_holds_up_nobody(far: Callable[..., Far]) -> None:
    there = far(dial_s=0.2)
    there.say(1, StreamOp.OPEN)
    there.say(1, StreamOp.DATA, b"GET http://slow.test/ HTTP/1.1\r\n\r\n")
    there.say(2, StreamOp.OPEN)
    there.say(2, StreamOp.DATA, b"GET http://elsewhere.test/ HTTP/1.1\r\n\r\n")
    assert b" 403 " in there.heard(2, StreamOp.DATA).body
    assert b" 504 " in there.heard(1, StreamOp.DATA).body


def test_an_idle_connection_is_closed(far: Callable[..., Far], echo: Echo) -> None:
    there = far(idle_s=0.3)
    there.tunnel(1, echo.server_address[1])
    there.heard(1, StreamOp.CLOSE)
    assert echo.ended.acquire(timeout=60)


def test_the_host_sends_no_more_than_the_guest_takes(far: Callable[..., Far], echo: Echo) -> None:
    there = far()
    there.tunnel(1, echo.server_address[1])
    # Sent up in full as credit comes; what comes back stops at the window, as no credit is given for it.
    sent, received, credit = 0, 0, STREAM_WINDOW - 600
    for _ in range(40):
        if credit > 9000:
            there.say(1, StreamOp.DATA, b"x" * 8192)
            sent, credit = sent + 8192, credit - stream_cost(8192)
        there.say(2 + _, StreamOp.OPEN)
        there.say(2 + _, StreamOp.DATA, b"bad\r\n\r\n")
        while True:
            frame = there.guest.take()
            if frame.head["stream_id"] == 2 + _:
                break
            if frame.head["do"] == StreamOp.CREDIT:
                credit += frame.head["n"]
            elif frame.head["do"] == StreamOp.DATA:
                received += stream_cost(len(frame.body))
        there.say(2 + _, StreamOp.CLOSE)
    assert received <= STREAM_WINDOW
    assert sent > received


def test_the_end_of_the_link_closes_the_connections(far: Callable[..., Far], echo: Echo, until: Until) -> None:
    there = far()
    there.tunnel(1, echo.server_address[1])
    assert echo.began.acquire(timeout=60)
    there.guest.end.close()
    assert echo.ended.acquire(timeout=60)
    until(lambda: not any(thread.name == "egress-test" for thread in threading.enumerate()), "the thread ended")


def test_the_budget_lets_go_what_the_rate_allows() -> None:
    now = [0.0]
    budget = Budget(EgressLimits(bytes_per_s=1000, burst_bytes=500, total_bytes=2000), lambda: now[0])
    assert budget.wait_s == 0
    budget.spend(1500)
    assert budget.wait_s == pytest.approx(1.0, abs=0.01)
    now[0] += 1.1
    assert budget.wait_s == 0
    now[0] += 1000
    budget.spend(499)
    assert budget.wait_s == 0, "a pause saves up no more than the burst"
    budget.spend(2)
    assert budget.wait_s > 0
    assert budget.left_bytes == -1


def test_what_is_not_on_the_list_is_not_even_resolved() -> None:
    asked: list[str] = []

    def ask(name: str) -> list[str]:
        asked.append(name)
        return ["127.0.0.1"]

    with pytest.raises(Refused, match="not on this box's list"):
        dial(Policy(parse_rules(("site.test",)), resolver=ask), "elsewhere.test", 443, 1)
    assert asked == []


def drain(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def test_a_rate_holds_for_what_is_only_sent(far: Callable[..., Far]) -> None:
    there = far(bytes_per_s=128 * 1024, burst_bytes=16 * 1024)
    with socket.create_server(("127.0.0.1", 0)) as sink:
        sink.settimeout(10)
        there.tunnel(1, sink.getsockname()[1])
        taking, _ = sink.accept()
        with taking:
            thread = threading.Thread(target=drain, args=(taking,))
            thread.start()
            began, left, credit = time.monotonic(), 160_000, STREAM_WINDOW - 600
            while left > 0:
                if credit > stream_cost(8000):
                    there.say(1, StreamOp.DATA, b"x" * 8000)
                    left, credit = left - 8000, credit - stream_cost(8000)
                else:
                    credit += there.heard(1, StreamOp.CREDIT).head["n"]
            # The first window goes at once; the rest waits for credit.
            assert time.monotonic() - began > 0.4
            there.say(1, StreamOp.CLOSE)
            thread.join(60)


def test_a_rate_holds_over_many_connections(far: Callable[..., Far], echo: Echo) -> None:
    there = far(bytes_per_s=256 * 1024, burst_bytes=32 * 1024)
    port = echo.server_address[1]
    for number in (1, 2):
        there.tunnel(number, port)
    began, taken = time.monotonic(), 0
    for number in (1, 2):
        there.say(number, StreamOp.DATA, b"x" * 60_000)
    while taken < 120_000:
        frame = there.guest.take()
        if frame.head["do"] == StreamOp.DATA:
            taken += len(frame.body)
            there.say(frame.head["stream_id"], StreamOp.CREDIT, n=stream_cost(len(frame.body)))
    # Up and down together are 240 kB; what a slow machine takes longer is no fault.
    assert time.monotonic() - began > 0.5
