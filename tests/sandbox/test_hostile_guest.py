"""Boxes whose guest lies: the box is lost, or the lie is let pass within bounds; the worker and other boxes go on.

Lies about the streams of a way out are in `egress/test_carrier.py`, random answers in `test_replies.py`.
"""

import json
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox import box as box_module
from sandbox import lifeline
from sandbox.box import Box
from sandbox.errors import BoxLost, LossReason
from sandbox.requests import EditRequest, ReadRequest, RunRequest, WriteRequest
from sandbox.wire import MAX_BODY_BYTES, MAX_HEAD_BYTES, Frame, encode
from tests.sandbox.scripted_guest import INFO, MARK, RAN, VERSION, Said, Script, ScriptedContainer

MIB = 1024 * 1024
BOUND_BYTES = 3 * MAX_BODY_BYTES
"""One frame as it comes in and as it is given out; a guest may send no larger one."""
DIGITS = b"9" * 4000
"""More make a number that Python refuses to read."""


def framed(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


def answer(frame: Frame, **changes: Any) -> bytes:
    return encode({"id": frame.head["id"], **RAN, **changes}, b"hi")


def with_number(frame: Frame, field: str, number: bytes) -> bytes:
    """An answer with a number as JSON writers would not write it."""
    text = json.dumps({"id": frame.head["id"], **RAN, field: "NUMBER"}).encode()
    return framed(text.replace(b'"NUMBER"', number), b"hi")


def part(name: str, **changes: Any) -> dict[str, Any]:
    return {name: {**RAN[name], **changes}}


LIES: dict[str, Callable[[Frame], Said]] = {
    "a head that is shorter than announced": lambda f: struct.pack(">II", 30, 0) + answer(f)[8:],
    "a head that is longer than announced": lambda f: struct.pack(">II", 5000, 0) + answer(f)[8:] + b" " * 5000,
    "a body that is longer than announced": lambda f: answer(f) + b"more of it" * 10,
    "a frame of no length": lambda _: bytes(8),
    "a head beyond the limit": lambda _: struct.pack(">II", MAX_HEAD_BYTES + 1, 0),
    "a body beyond the limit": lambda _: struct.pack(">II", 2, MAX_BODY_BYTES + 1),
    "lengths of four gigabytes": lambda _: b"\xff" * 8,
    "bytes that are no frame": lambda _: b"HTTP/1.1 200 OK\r\n\r\n",
    "a head that is no JSON": lambda _: framed(b"exit_code=0"),
    "a head that is a list": lambda _: framed(b"[]"),
    "a head that is no text": lambda _: framed(b"\x80\x81\x82\x83"),
    "a deep list": lambda f: framed(b'{"id":%d,"x":%s}' % (f.head["id"], b"[" * 100_000 + b"]" * 100_000)),
    "a deep object": lambda f: framed(b'{"id":%d,"x":%s1%s}' % (f.head["id"], b'{"a":' * 30_000, b"}" * 30_000)),
    "an event of no kind": lambda f: encode({"id": f.head["id"], "event": "reboot"}),
    "an event that is no text": lambda f: encode({"id": f.head["id"], "event": {"out": 1}}),
    "output that was not asked for": lambda f: encode({"id": f.head["id"], "event": "out"}, b"x"),
    "an answer to a call not made yet": lambda f: encode({"id": f.head["id"] + 1, **RAN}, b"hi"),
    "an answer to no call": lambda _: encode(RAN, b"hi"),
    "an answer to a call below zero": lambda _: encode({"id": -1, **RAN}, b"hi"),
    "an answer to a call named by a text": lambda f: encode({"id": str(f.head["id"]), **RAN}, b"hi"),
    "an answer to a call named by a fraction": lambda f: encode({"id": f.head["id"] + 0.5, **RAN}, b"hi"),
    "an answer to a call named by infinity": lambda _: framed(b'{"id":1e999}'),
    "an answer to a call named by NaN": lambda _: framed(b'{"id":NaN}'),
    "a stream that nobody allowed": lambda _: encode({"stream_id": 1, "do": "open"}),
    "data of a stream that nobody opened": lambda _: encode({"stream_id": 1, "do": "data"}, b"x" * 1000),
    "the answer of another operation": lambda f: encode({"id": f.head["id"], "found": True}),
    "nothing but an id": lambda f: encode({"id": f.head["id"]}),
    "NaN for an exit code": lambda f: with_number(f, "exit_code", b"NaN"),
    "infinity for an exit code": lambda f: with_number(f, "exit_code", b"1e999"),
    "an exit code of four thousand digits": lambda f: with_number(f, "exit_code", DIGITS),
    "an exit code of two hundred thousand digits": lambda f: with_number(f, "exit_code", DIGITS * 50),
    "true for an exit code": lambda f: answer(f, exit_code=True),
    "a fraction for a signal": lambda f: answer(f, signal=9.0),
    "NaN for a duration": lambda f: with_number(f, "duration_ms", b"NaN"),
    "infinity for a duration": lambda f: with_number(f, "duration_ms", b"-Infinity"),
    "a duration of an age": lambda f: with_number(f, "duration_ms", b"1e300"),
    "a duration below zero": lambda f: answer(f, duration_ms=-1.0),
    "one for true": lambda f: answer(f, timed_out=1),
    "a list for a text": lambda f: answer(f, cwd=["/"]),
    "a text beyond the limit": lambda f: answer(f, cwd="/" * 100_000),
    "a text of half characters": lambda f: answer(f, cwd="/\ud800"),
    "process ids without end": lambda f: answer(f, left_running=list(range(20_000))),
    "process ids that are texts": lambda f: answer(f, left_running=["1; reboot"]),
    "a long name of a background command": lambda f: answer(f, background_id="x" * 65),
    "a path for the name of a background command": lambda f: answer(f, background_id="../../etc/cron"),
    "no letter in the name of a background command": lambda f: answer(f, background_id=""),
    "less output than counted": lambda f: answer(f, **part("stdout", head=3)),
    "output counted below zero": lambda f: answer(f, **part("stdout", head=-2, tail=4)),
    "output counted beyond all numbers": lambda f: answer(f, **part("stdout", bytes=2**64)),
    "a stream that is no object": lambda f: answer(f, stdout=None),
    "a refusal of no kind": lambda f: encode({"id": f.head["id"], "refused": "../../etc/passwd", "message": ""}),
    "a refusal that is a number": lambda f: encode({"id": f.head["id"], "refused": 1, "message": ""}),
    "a refusal of a megabyte": lambda f: encode({"id": f.head["id"], "refused": "LIMIT", "message": "x" * 200_000}),
}

Make = Callable[..., tuple[Box, ScriptedContainer]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[tuple[Box, ScriptedContainer]] = []

    def start(script: Script) -> tuple[Box, ScriptedContainer]:
        container = ScriptedContainer(script)
        made.append((Box(f"lying-{len(made)}", container, ({}, {})), container))
        return made[-1]

    yield start
    for box, container in made:
        box.close()
        container.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for besides the time limit of the command is short."""
    for module, name in (
        (box_module, "MARGIN_S"),
        (box_module, "SHORT_TIMEOUT_S"),
        (box_module, "FILE_TIMEOUT_S"),
        (lifeline, "MARGIN_S"),
        (lifeline, "HELLO_TIMEOUT_S"),
        (lifeline, "RELINK_S"),
    ):
        monkeypatch.setattr(module, name, 0.3)


def run(box: Box, on_output: Callable[[bytes], None] | None = None) -> Any:
    return box.run(RunRequest(MARK, command="echo hi", timeout_ms=100), on_output)


def is_lost(box: Box, container: ScriptedContainer, act: Callable[[], object]) -> None:
    """The act ends in a box that is lost for its guest's sake, removed, and without a thread."""
    with pytest.raises(BoxLost) as lost:
        act()
    assert lost.value.reason is LossReason.PROTOCOL
    assert container.removed
    assert not box.is_alive()
    with pytest.raises(BoxLost):
        box.ping()
    readers = [thread for thread in threading.enumerate() if thread.name == f"link-{box.box_id}"]
    for reader in readers:
        reader.join(60)
    assert not any(reader.is_alive() for reader in readers)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_guest_that_breaks_the_rules_loses_its_box_alone(make: Make, lie: Script) -> None:
    honest, _ = make(answer)
    box, container = make(lie)
    tracemalloc.start()
    try:
        is_lost(box, container, lambda: run(box))
        assert tracemalloc.get_traced_memory()[1] < BOUND_BYTES
    finally:
        tracemalloc.stop()
    assert container.connections == 1, "it was seen at once, not by waiting for it"
    assert run(honest).stdout.head == b"hi"


def test_lies_about_files_lose_the_box_too(make: Make) -> None:
    read = {"path": "/x", "version": VERSION, "first_line": 1, "last_line": 1, "total_lines": 1}
    flags = {"partial": False, "line_cut": False}
    asks: dict[str, tuple[Callable[[Box], object], dict[str, Any]]] = {
        "a line before the first": (lambda b: b.read(ReadRequest(MARK, "x")), {**read, **flags, "first_line": 0}),
        "a version without a size": (lambda b: b.read(ReadRequest(MARK, "x")), {**read, **flags, "version": {}}),
        "a kind of file there is not": (lambda b: b.stat("s", "x"), {"path": "/x", "kind": "portal", "size": 1}),
        "a size beyond all files": (lambda b: b.stat("s", "x"), {"path": "/x", "kind": "file", "size": 2**70}),
        "an edit of nothing": (
            lambda b: b.edit(EditRequest(MARK, "x", (), None)),
            {"path": "/x", "version": VERSION, "replacements": 0, "diff_cut": False},
        ),
        "a write of a negative size": (
            lambda b: b.write(WriteRequest(MARK, "x", b"", None)),
            {"path": "/x", "version": VERSION, "created": True, "bytes": -1},
        ),
        "background commands that are numbers": (lambda b: b.backgrounds("s"), {"backgrounds": [1, 2]}),
        "more background commands than there can be": (lambda b: b.backgrounds("s"), {"backgrounds": [{}] * 10_001}),
    }
    for ask, head in asks.values():
        box, container = make(lambda _, head=head: (head, b""))
        is_lost(box, container, lambda ask=ask, box=box: ask(box))  # type: ignore[misc]


def test_texts_that_look_like_paths_are_texts(make: Make) -> None:
    evil = "/workspace/../../etc/shadow\n\x1b[2J"
    box, container = make(lambda f: answer(f, cwd=evil))
    assert run(box).cwd == evil
    assert box.is_alive()
    assert not container.removed


def test_of_two_answers_to_one_call_the_first_counts(make: Make) -> None:
    box, _ = make(lambda f: answer(f) + answer(f, exit_code=1) * 3)
    assert [run(box).exit_code for _ in range(3)] == [0, 0, 0]
    assert box.is_alive()


def test_answers_to_calls_that_were_answered_are_let_pass_within_bounds(make: Make) -> None:
    def flood(frame: Frame) -> Iterator[bytes]:
        again = encode({"id": 1, **RAN}, b"x" * MIB)
        while frame:
            yield again

    box, container = make(lambda f: answer(f) if f.head["op"] == "run" else flood(f))
    assert run(box).exit_code == 0
    tracemalloc.start()
    try:
        is_lost(box, container, box.ping)
        assert tracemalloc.get_traced_memory()[1] < BOUND_BYTES
    finally:
        tracemalloc.stop()
    assert container.connections == 1, "too much of it was seen, not an answer waited for"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("op", ["run", "ping", "read"])
def test_a_guest_that_never_answers_is_given_up(make: Make, op: str) -> None:
    box, container = make(lambda _: b"")
    acts: dict[str, Callable[[], object]] = {
        "run": lambda: run(box),
        "ping": box.ping,
        "read": lambda: box.read(ReadRequest(MARK, "x")),
    }
    is_lost(box, container, acts[op])
    # Asked a second time over a new link before it is given up.
    assert container.connections == 2


@pytest.mark.usefixtures("impatient")
def test_a_slow_drip_is_given_up_however_long_it_goes_on(make: Make) -> None:
    def drip(frame: Frame) -> Iterator[bytes]:
        for byte in framed(b'{"id":%d' % frame.head["id"] + b" " * 200_000):
            yield bytes([byte])
            threading.Event().wait(0.005)

    box, container = make(drip)
    is_lost(box, container, lambda: run(box))


@pytest.mark.usefixtures("impatient")
def test_output_without_end_ends_with_the_calls_time_in_bounded_memory(make: Make) -> None:
    def flood(frame: Frame) -> Iterator[bytes]:
        piece = encode({"id": frame.head["id"], "event": "out"}, b"x" * 65_536)
        while frame:
            yield piece

    box, container = make(flood)
    sizes: set[int] = set()
    tracemalloc.start()
    try:
        is_lost(box, container, lambda: run(box, lambda data: sizes.add(len(data))))
        assert tracemalloc.get_traced_memory()[1] < BOUND_BYTES
    finally:
        tracemalloc.stop()
    assert sizes == {65_536}


@pytest.mark.usefixtures("impatient")
def test_a_body_as_large_as_may_be_costs_its_size_once(make: Make) -> None:
    # The guest of this test lives in the same process: its own body must not be counted.
    body = bytes(MAX_BODY_BYTES)
    box, _ = make(lambda f: encode({"id": f.head["id"], **RAN}, body))
    tracemalloc.start()
    try:
        with pytest.raises(BoxLost, match="does not fit"):
            run(box)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BODY_BYTES
    finally:
        tracemalloc.stop()


GREETINGS: dict[str, Script] = {
    "nothing": lambda _: b"",
    "garbage": lambda _: b"\xff" * 64,
    "another protocol": lambda _: ({**INFO, "protocol": 99}, b""),
    "no facts": lambda _: ({**INFO, "facts": [1]}, b""),
    "facts that are numbers": lambda _: ({**INFO, "facts": {"pids_max": 1}}, b""),
    "a user below zero": lambda _: ({**INFO, "uid": -1}, b""),
    "a refusal": lambda _: ({"refused": "INTERNAL", "message": "no"}, b""),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_guest_that_begins_with_a_lie_gets_no_box(greeting: Script) -> None:
    container = ScriptedContainer(lambda _: None, greeting)
    with pytest.raises(BoxLost) as lost:
        Box("lying", container, ({}, {}))
    container.end()
    assert lost.value.reason is LossReason.PROTOCOL
    assert container.removed
