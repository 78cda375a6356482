"""Commands whose input and output the host has, on every engine."""

import hashlib
import threading
import time
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused
from sandbox.pipes import Pipe, PipeBroken, PipeEnd
from sandbox.requests import RunAnswer
from sandbox.wire import PIPES_MAX, RefusalCode, stream_cost
from tests.conftest import Until

WAIT_S = 60


class Talk:
    """A command with pipes, and what it said so far."""

    def __init__(self, box: Box, *argv: str, takes: bool = True, **env: str) -> None:
        self.out = bytearray()
        self.ends: list[PipeEnd] = []
        self._takes = takes
        self._heard = threading.Condition()
        self.pipe: Pipe | None = None
        self.pipe = box.open_pipe(argv, env, self._data, self._end)

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
