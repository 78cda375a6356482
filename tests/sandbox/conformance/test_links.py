"""Calls on every engine: each once, whatever becomes of the link."""

import threading
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused, RefusalCode
from sandbox.requests import CallMark, RunAnswer, WriteRequest

Run = Callable[..., RunAnswer]
MakeMark = Callable[..., CallMark]


def test_the_same_call_twice_runs_once(run: Run, mark: MakeMark) -> None:
    given = mark()
    answers: list[RunAnswer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(run("sleep 0.2; echo x >> log; cat log", mark=given)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    answers.append(run("sleep 0.2; echo x >> log; cat log", mark=given))
    assert [answer.stdout.head for answer in answers] == [b"x\n"] * 6
    assert len({answer.duration_ms for answer in answers}) == 1
    with pytest.raises(GuestRefused) as refused:
        run("echo other", mark=CallMark(given.key, "other digest", "s", 1, 0))
    assert refused.value.code is RefusalCode.CALL_MISMATCH
    with pytest.raises(GuestRefused) as refused:
        run("echo x >> log", mark=mark(join=True))
    assert refused.value.code is RefusalCode.UNKNOWN_CALL


def test_a_write_made_twice_is_made_once(box: Box, mark: MakeMark, here: str) -> None:
    # A session of its own, for its steps go on.
    request = WriteRequest(mark("w"), f"{here}/f", b"first", None, must_be_new=True)
    assert box.write(request) == box.write(request)
    box.begin_step("w", 1, 1)
    with pytest.raises(GuestRefused) as refused:
        box.write(request)
    assert refused.value.code is RefusalCode.STALE


def test_a_link_cut_in_the_middle_loses_no_answer(box: Box, run: Run, here: str) -> None:
    answers: list[RunAnswer] = []
    command = "echo x >> log; while [ ! -e go ]; do sleep 0.02; done; cat log"
    thread = threading.Thread(target=lambda: answers.append(run(command)))
    thread.start()
    run(f"while [ ! -e {here}/log ]; do sleep 0.02; done", session="other")
    assert box._link is not None
    box._link.close()
    run(f"touch {here}/go", session="other")
    thread.join(60)
    assert answers[0].stdout.head == b"x\n"


def test_a_link_cut_while_streaming_is_told(box: Box, run: Run, here: str) -> None:
    began = threading.Event()
    answers: list[RunAnswer] = []
    command = "head -c 40000 /dev/zero; while [ ! -e go ]; do sleep 0.02; done; head -c 40000 /dev/zero"
    thread = threading.Thread(target=lambda: answers.append(run(command, lambda _: began.set())))
    thread.start()
    assert began.wait(60)
    assert box._link is not None
    box._link.close()
    run(f"touch {here}/go", session="other")
    thread.join(60)
    assert answers[0].stdout.total_bytes == 80_000
    assert not answers[0].spill_complete
