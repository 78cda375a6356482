"""Commands whose input and output the host has, on every engine."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused
from sandbox.pipes import Listener, Pipe, PipeBroken, PipeEnd, Tty
from sandbox.requests import RunAnswer
from sandbox.wire import CONNECTIONS_MAX, PIPES_MAX, RefusalCode, stream_cost
from tests.conftest import Until
from tests.sandbox.gvisor import RUNTIME

WAIT_S = 60


class Talk:
    """A command with pipes, and what it said so far."""

    def __init__(
        self, box: Box, *argv: str, takes: bool = True, tty: Tty | None = None, errors: bool = False, **env: str
    ) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.ends: list[PipeEnd] = []
        self._takes = takes
        self._heard = threading.Condition()
        self.pipe: Pipe | None = None
        listener = Listener(self._data, self._end, on_errors=self._errors if errors else None)
        self.pipe = box.open_pipe(argv, env, listener, tty=tty)

    def _errors(self, data: bytes) -> None:
        self.err += data
        self.take(data)

    def _data(self, data: bytes) -> None:
        with self._heard:
            self.out += data
            self._heard.notify_all()
        if self._takes:
            self.take(data)

    def take(self, data: bytes) -> None:
        # A command may print before its opening is answered.
        deadline = time.monotonic() + WAIT_S
        while self.pipe is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.pipe is not None
        # The link may be gone by now.
        with suppress(PipeBroken):
            self.pipe.took(stream_cost(len(data)))

    def _end(self, end: PipeEnd) -> None:
        with self._heard:
            self.ends.append(end)
            self._heard.notify_all()

    def say(self, data: bytes) -> None:
        assert self.pipe is not None
        self.pipe.write(data, WAIT_S)

    def hears(self, size: int) -> bytes:
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.out) >= size or self.ends, WAIT_S), bytes(self.out[-200:])
            return bytes(self.out)

    def ends_within(self, timeout_s: float) -> bool:
        with self._heard:
            return bool(self._heard.wait_for(lambda: self.ends, timeout_s))

    def ended(self) -> PipeEnd:
        with self._heard:
            assert self._heard.wait_for(lambda: self.ends, WAIT_S)
        return self.ends[0]


def test_a_command_answers_as_long_as_it_is_asked_and_ends_with_its_input(box: Box, home: str) -> None:
    talk = Talk(box, "sh", "-c", "pwd; cat; echo $WORD; echo bad >&2; exit 3", WORD="good")
    assert talk.hears(len(home) + 1) == f"{home}\n".encode()
    talk.say(b"one\n")
    assert talk.hears(len(home) + 5).endswith(b"one\n")
    assert talk.pipe is not None
    talk.pipe.end()
    end = talk.ended()
    assert talk.out.endswith(b"one\ngood\n")
    assert (end.words, end.said) == ("it ended with exit code 3", "bad\n")
    with pytest.raises(PipeBroken, match="exit code 3"):
        talk.say(b"more")


def test_much_goes_both_ways_and_arrives_whole(box: Box) -> None:
    talk = Talk(box, "cat")
    data = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(60_000))
    talk.say(data)
    assert talk.hears(len(data)) == data
    assert talk.pipe is not None
    talk.pipe.end()
    assert talk.ended().words == "it ended with exit code 0"


def test_who_takes_nothing_gets_no_more_and_holds_up_nobody(
    box: Box, run: Callable[..., RunAnswer], until: Until
) -> None:
    talk = Talk(box, "sh", "-c", "yes", takes=False)
    heard = 0

    def stands_still() -> bool:
        nonlocal heard
        before, heard = heard, len(talk.out)
        return 0 < heard == before

    talk.hears(1)
    # Other requests go to and fro between two looks.
    until(lambda: run("echo alive").stdout.text() == "alive\n" and stands_still(), "it stands still", WAIT_S)
    assert heard < 128 * 1024
    talk.take(b"x" * 16_000)
    talk.hears(heard + 1)
    assert talk.pipe is not None
    talk.pipe.close()


def test_closing_ends_it_with_all_it_started(box: Box, run: Callable[..., RunAnswer], here: str, until: Until) -> None:
    talk = Talk(box, "sh", "-c", f"(setsid sleep 4711 &) ; echo begun; trap '' TERM; sleep 4712; echo {here}")
    talk.hears(6)
    assert talk.pipe is not None
    talk.pipe.close()
    assert talk.ended().words == "it was ended by signal 9"
    alive = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c 'sleep 471[12]'"
    until(lambda: run(alive).stdout.text().strip() == "0", "nothing of it is left", WAIT_S)


def test_closing_ends_also_what_is_only_about_to_start(box: Box) -> None:
    for _ in range(20):
        talk = Talk(box, "sleep", "4722")
        assert talk.pipe is not None
        talk.pipe.close()
        assert talk.ended().signal == 9


def test_what_cannot_be_started_says_why(box: Box) -> None:
    assert "could not be started" in Talk(box, "/no/such/program").ended().words
    with pytest.raises(GuestRefused):
        Talk(box)


def test_there_are_only_so_many(fresh_box: Callable[[], Box]) -> None:
    box = fresh_box()
    talks = [Talk(box, "cat") for _ in range(PIPES_MAX)]
    with pytest.raises(GuestRefused) as caught:
        Talk(box, "cat")
    assert caught.value.code is RefusalCode.LIMIT
    assert talks[0].pipe is not None
    talks[0].pipe.end()
    talks[0].ended()
    Talk(box, "cat")


def test_it_ends_with_the_link_and_stands_still_with_the_box(fresh_box: Callable[[], Box]) -> None:
    box = fresh_box()
    talk = Talk(box, "cat")
    talk.say(b"a")
    talk.hears(1)
    box.freeze()
    with pytest.raises(GuestRefused) as caught:
        Talk(box, "cat")
    assert caught.value.code is RefusalCode.FROZEN
    box.thaw()
    talk.say(b"b")
    assert talk.hears(2) == b"ab"
    box.close()
    assert "link" in talk.ended().words


def until_said(talk: Talk, words: bytes) -> None:
    """Wait until the command has said something."""
    deadline = time.monotonic() + WAIT_S
    while words not in talk.out:
        assert time.monotonic() < deadline and not talk.ends, bytes(talk.out[-500:])  # noqa: PT018
        talk.hears(len(talk.out) + 1)


def test_a_command_on_a_terminal_of_its_own_knows_its_size(box: Box) -> None:
    shell = (
        "test -t 0 && test -t 1 && test -t 2 && echo all are; echo term $TERM; stty size; "
        "read word; echo got $word; read word; stty size; exit 7"
    )
    talk = Talk(box, "sh", "-c", shell, tty=Tty(33, 101), TERM="xterm")
    assert talk.pipe is not None
    until_said(talk, b"33 101\r\n")
    assert b"all are\r\nterm xterm\r\n" in talk.out
    talk.say(b"one\n")
    until_said(talk, b"got one\r\n")
    # What is typed is shown by the terminal itself.
    assert talk.out.startswith(b"all are") and b"one\r\ngot one" in talk.out  # noqa: PT018
    talk.pipe.resize(Tty(40, 120))
    talk.say(b"again\n")
    assert (talk.ended().exit_code, talk.ended().signal) == (7, None)
    assert talk.out.endswith(b"40 120\r\n")


@pytest.fixture
def acts_on_keys(request: pytest.FixtureRequest) -> None:
    """Terminals of gVisor before 2023 pass Ctrl-C and Ctrl-D on as characters."""
    if request.node.callspec.params["engine_and_spec"] == RUNTIME:
        pytest.skip("this kernel's terminals act upon no key")


@pytest.mark.usefixtures("acts_on_keys")
def test_ctrl_d_on_a_terminal_ends_the_input(box: Box) -> None:
    talk = Talk(box, "sh", "-c", "cat; exit 6", tty=Tty(24, 80))
    talk.say(b"line\n\x04")
    assert talk.ended().exit_code == 6
    assert talk.out == b"line\r\nline\r\n"


@pytest.mark.usefixtures("acts_on_keys")
def test_ctrl_c_on_a_terminal_reaches_what_runs_in_front(box: Box, run: Callable[..., RunAnswer]) -> None:
    talk = Talk(box, "sh", "-c", "echo begun; sleep 4713; echo not said", tty=Tty(24, 80))
    until_said(talk, b"begun")
    # As a person would, again until it is heard.
    for _ in range(WAIT_S):
        with suppress(PipeBroken):
            talk.say(b"\x03")
        if talk.ends_within(1.0):
            break
    assert talk.ended().signal == 2 or talk.ended().exit_code == 130
    assert b"not said" not in talk.out
    assert run("echo alive").stdout.text() == "alive\n"


def test_a_terminal_is_the_agents_and_goes_with_its_command(
    box: Box, run: Callable[..., RunAnswer], until: Until, here: str
) -> None:
    owner_of = "python3 -c 'import os; print(os.fstat(0).st_uid)'"
    talk = Talk(box, "sh", "-c", f"{owner_of}; id -u; (setsid sleep 4714 &); echo begun; cat", tty=Tty(24, 80))
    assert talk.pipe is not None
    until_said(talk, b"begun\r\n")
    talk.say(b"seen\n")
    until_said(talk, b"seen\r\nseen\r\n")
    owner, user = talk.out.split()[:2]
    assert owner == user
    talk.pipe.close()
    assert talk.ended().signal == 9
    alive = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c 'sleep 471[4]'"
    until(lambda: run(alive).stdout.text().strip() == "0", "nothing of it is left", WAIT_S)


def test_a_terminal_has_a_size_that_makes_sense(box: Box) -> None:
    for size in (Tty(0, 80), Tty(24, 1001)):
        with pytest.raises(GuestRefused) as caught:
            Talk(box, "true", tty=size)
        assert caught.value.code is RefusalCode.INVALID_PARAM


def test_what_is_said_on_standard_error_comes_apart_where_that_is_wanted(box: Box) -> None:
    talk = Talk(box, "sh", "-c", "echo out; echo err >&2; yes x | head -c 200000 >&2; exit 4", errors=True)
    end = talk.ended()
    assert (bytes(talk.out), len(talk.err), end.exit_code, end.said) == (b"out\n", 200_004, 4, "")


SERVER = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def serve(client):
    got = b""
    while data := client.recv(65536):
        got += data
        if not got.startswith(b"later"):
            client.sendall(data)
    if got.startswith(b"later"):
        client.sendall(got[::-1])
    client.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


class Call:
    """A connection into the box, and what came of it."""

    def __init__(self, box: Box, port: int) -> None:
        self.out = bytearray()
        self.has_eof = False
        self.ends: list[PipeEnd] = []
        self._heard = threading.Condition()
        self._ready = threading.Event()
        self.pipe = box.connect(port, Listener(self._data, self._end, on_eof=self._eof))
        self._ready.set()

    def _data(self, data: bytes) -> None:
        with self._heard:
            self.out += data
            self._heard.notify_all()
        assert self._ready.wait(WAIT_S)
        with suppress(PipeBroken):
            self.pipe.took(stream_cost(len(data)))

    def _eof(self) -> None:
        with self._heard:
            self.has_eof = True
            self._heard.notify_all()

    def _end(self, end: PipeEnd) -> None:
        with self._heard:
            self.ends.append(end)
            self._heard.notify_all()

    def waits(self, claim: Callable[[], bool]) -> None:
        with self._heard:
            assert self._heard.wait_for(claim, WAIT_S), (len(self.out), self.has_eof, self.ends)


@pytest.fixture
def server_port(box: Box) -> Iterator[int]:
    """A port of the box at which somebody answers."""
    server = Talk(box, "python3", "-c", SERVER)
    server.hears(4)
    until_said(server, b"\n")
    yield int(server.out)
    assert server.pipe is not None
    server.pipe.close()
    server.ended()


def test_many_connections_reach_a_port_of_the_box_at_once_each_with_its_own(box: Box, server_port: int) -> None:
    calls = [Call(box, server_port) for _ in range(8)]
    data = [hashlib.sha256(b"%d" % number).digest() * 5_000 for number in range(8)]
    threads = [
        threading.Thread(target=call.pipe.write, args=(mine, WAIT_S)) for call, mine in zip(calls, data, strict=True)
    ]
    for thread in threads:
        thread.start()
    for call, mine in zip(calls, data, strict=True):
        call.waits(lambda call=call, mine=mine: len(call.out) == len(mine))  # type: ignore[misc]
        assert call.out == mine
        call.pipe.end()
        call.waits(lambda call=call: bool(call.ends))  # type: ignore[misc]
        assert call.has_eof
        assert call.ends[0].words == "the connection was closed"
    for thread in threads:
        thread.join()


def test_an_end_goes_in_one_direction_and_the_answer_comes_in_the_other(box: Box, server_port: int) -> None:
    call = Call(box, server_port)
    call.pipe.write(b"later: abc", WAIT_S)
    call.pipe.end()
    call.waits(lambda: call.has_eof)
    assert call.out == b"cba :retal"
    closed = Call(box, server_port)
    closed.pipe.close()
    closed.waits(lambda: bool(closed.ends))


def test_a_port_where_nobody_listens_is_refused(box: Box) -> None:
    unused = Talk(
        box, "python3", "-c", "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
    )
    unused.ended()
    with pytest.raises(GuestRefused, match="nothing listens on port") as caught:
        Call(box, int(unused.out))
    assert caught.value.code is RefusalCode.NOT_FOUND
    with pytest.raises(GuestRefused) as caught:
        Call(box, 0)
    assert caught.value.code is RefusalCode.INVALID_PARAM


def test_connections_are_bounded_and_end_with_the_link(fresh_box: Callable[[], Box]) -> None:
    box = fresh_box()
    server = Talk(box, "python3", "-c", SERVER)
    until_said(server, b"\n")
    calls = [Call(box, int(server.out)) for _ in range(CONNECTIONS_MAX)]
    with pytest.raises(GuestRefused) as caught:
        Call(box, int(server.out))
    assert caught.value.code is RefusalCode.LIMIT
    calls[0].pipe.close()
    calls[0].waits(lambda: bool(calls[0].ends))
    again = Call(box, int(server.out))
    box.close()
    again.waits(lambda: "link" in again.ends[0].words if again.ends else False)
