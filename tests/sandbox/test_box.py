"""A box over a scripted guest: lost for the right reason, linked again, asked again under the same key."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.box import Box
from sandbox.errors import BoxLost, GuestRefused, LossReason, RefusalCode
from sandbox.requests import Edit, EditRequest, ReadRequest, RunRequest, WriteRequest
from sandbox.wire import PROTOCOL, Frame
from tests.sandbox.scripted_guest import INFO, MARK, RAN, VERSION, Script, ScriptedContainer


@pytest.fixture
def make() -> Iterator[Callable[[Script], tuple[Box, ScriptedContainer]]]:
    made: list[tuple[Box, ScriptedContainer]] = []

    def start(script: Script) -> tuple[Box, ScriptedContainer]:
        container = ScriptedContainer(script)
        made.append((Box("b", container, ({}, {})), container))
        return made[-1]

    yield start
    for box, container in made:
        box.close()
        container.end()


Make = Callable[[Script], tuple[Box, ScriptedContainer]]


def test_an_answer_is_parsed(make: Make) -> None:
    box, _ = make(lambda _: (RAN, b"hi"))
    answer = box.run(RunRequest(MARK, command="echo"))
    assert (answer.stdout.head, answer.exit_code) == (b"hi", 0)


def changed(**fields: Any) -> dict[str, Any]:
    return {**RAN, **fields}


@pytest.mark.parametrize(
    "said",
    [
        (changed(exit_code="0"), b"hi"),
        (changed(exit_code=True), b"hi"),
        (changed(exit_code=-1), b"hi"),
        (changed(signal=10**9), b"hi"),
        (changed(timed_out=1), b"hi"),
        (changed(cwd=None), b"hi"),
        (changed(cwd="/" * 10_000), b"hi"),
        (changed(left_running=["1"]), b"hi"),
        (changed(left_running=list(range(1000))), b"hi"),
        (changed(duration_ms=float("nan")), b"hi"),
        (changed(duration_ms="long"), b"hi"),
        (changed(stdout=[]), b"hi"),
        (changed(stdout={"head": -2, "tail": 4, "bytes": 2, "lines": 1, "dropped": 0}), b"hi"),
        (RAN, b"not the size that was said"),
        ({}, b""),
        ({"refused": "NO_SUCH_CODE", "message": "x"}, b""),
        ({"refused": 7, "message": "x"}, b""),
        ({"refused": "NOT_FOUND", "message": None}, b""),
        b"\xff" * 100,
    ],
)
def test_an_answer_against_the_rules_loses_the_box(make: Make, said: tuple[dict[str, Any], bytes] | bytes) -> None:
    box, container = make(lambda _: said)
    with pytest.raises(BoxLost) as lost:
        box.run(RunRequest(MARK, command="echo"))
    assert lost.value.reason is LossReason.PROTOCOL
    assert container.removed
    assert not box.is_alive()


def test_answers_of_file_work_are_checked_too(make: Make) -> None:
    read = {"path": "/x", "version": VERSION, "first_line": 1, "last_line": 1, "total_lines": 1}
    flags = {"partial": False, "line_cut": False}
    box, _ = make(lambda _: ({**read, **flags}, b"x" * 11))
    with pytest.raises(BoxLost, match="more text"):
        box.read(ReadRequest(MARK, "x", max_bytes=10))
    for digest in ("", "z" * 64, "0" * 63, 5):
        bad = {"path": "/x", "version": {**VERSION, "sha256": digest}, "created": True, "bytes": 1}
        box, _ = make(lambda _, bad=bad: (bad, b""))  # type: ignore[misc]
        if digest == "":
            assert box.write(WriteRequest(MARK, "x", b"", None)).created
        else:
            with pytest.raises(BoxLost):
                box.write(WriteRequest(MARK, "x", b"", None))


def test_a_refusal_is_typed_and_the_box_lives(make: Make) -> None:
    box, container = make(lambda _: ({"refused": "NOT_FOUND", "message": "no x"}, b""))
    with pytest.raises(GuestRefused) as refused:
        box.edit(EditRequest(MARK, "x", (Edit("a", "b"),), None))
    assert refused.value.code is RefusalCode.NOT_FOUND
    assert box.is_alive()
    assert not container.removed


def test_a_broken_link_is_made_again_and_the_same_call_is_asked_again(make: Make) -> None:
    seen: list[Frame] = []

    def script(frame: Frame) -> tuple[dict[str, Any], bytes] | None:
        seen.append(frame)
        return None if len(seen) == 1 else (RAN, b"hi")

    box, container = make(script)
    assert box.run(RunRequest(MARK, command="echo")).stdout.head == b"hi"
    assert container.connections == 2
    assert [frame.head["key"] for frame in seen] == ["key", "key"]


def test_a_container_that_is_gone_is_told_by_its_reason(make: Make) -> None:
    box, container = make(lambda _: None)
    container.fate_now = (LossReason.OOM, "memory")
    with pytest.raises(BoxLost) as lost:
        box.run(RunRequest(MARK, command="echo"))
    assert lost.value.reason is LossReason.OOM
    with pytest.raises(BoxLost) as again:
        box.ping()
    assert again.value.reason is LossReason.OOM


def test_closing_ends_the_requests_under_way(make: Make) -> None:
    asked = threading.Event()
    hold = threading.Event()

    def script(_: Frame) -> None:
        asked.set()
        hold.wait(10)

    box, container = make(script)
    errors: list[BoxLost] = []

    def ask() -> None:
        try:
            box.run(RunRequest(MARK, command="sleep"))
        except BoxLost as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(60)
    box.close()
    thread.join(60)
    hold.set()
    assert [error.reason for error in errors] == [LossReason.ENDED]
    assert container.removed


def test_another_protocol_is_not_spoken_with() -> None:
    def script(_: Frame) -> None:
        return None

    container = ScriptedContainer(script)
    INFO["protocol"] = PROTOCOL + 1
    try:
        with pytest.raises(BoxLost, match="protocol"):
            Box("b", container, None)
    finally:
        INFO["protocol"] = PROTOCOL
        container.end()
    assert container.removed


def test_a_run_has_a_command_or_an_argv(make: Make) -> None:
    box, _ = make(lambda _: None)
    with pytest.raises(ValueError, match="either"):
        box.run(RunRequest(MARK))


def test_a_request_beyond_the_frame_is_refused_here(make: Make) -> None:
    box, _ = make(lambda _: (RAN, b"hi"))
    with pytest.raises(GuestRefused) as refused:
        box.run(RunRequest(MARK, argv=("x" * 300_000,)))
    assert refused.value.code is RefusalCode.INVALID_PARAM
    with pytest.raises(GuestRefused):
        box.write(WriteRequest(MARK, "x", b"x" * (16 * 1024 * 1024 + 1), None))
