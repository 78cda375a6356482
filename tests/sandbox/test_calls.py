"""The table of calls: at most once, fetchable until the next step, bounded."""

from typing import Any

import pytest

from sandbox.guest.calls import KEPT_BYTES, Calls, Mark
from sandbox.guest.refusal import Refusal
from sandbox.wire import RefusalCode

Answer = tuple[dict[str, Any], bytes]


class Sent(list[tuple[int, Answer]]):
    def __call__(self, request_id: int, answer: Answer) -> None:
        self.append((request_id, answer))


def mark(key: str, step: int = 0, generation: int = 1, **changes: Any) -> Mark:
    head = {"key": key, "digest": "d", "session": "s", "generation": generation, "step": step, "join": False}
    return Mark({**head, **changes})


def code_of(calls: Calls, given: Mark) -> RefusalCode:
    with pytest.raises(Refusal) as refused:
        calls.claim(given, 99)
    return refused.value.code


def test_a_known_key_joins_and_then_repeats_the_answer() -> None:
    sent = Sent()
    calls = Calls(sent)
    call = calls.claim(mark("k"), 1)
    assert call is not None
    assert calls.claim(mark("k"), 2) is None
    calls.finish(call, ({"n": 1}, b""))
    assert calls.claim(mark("k", join=True), 3) is None
    assert sent == [(1, ({"n": 1}, b"")), (2, ({"n": 1}, b"")), (3, ({"n": 1}, b""))]


def test_another_digest_and_an_unknown_join_are_refused() -> None:
    calls = Calls(Sent())
    calls.claim(mark("k"), 1)
    assert code_of(calls, mark("k", digest="other")) is RefusalCode.CALL_MISMATCH
    assert code_of(calls, mark("new", join=True)) is RefusalCode.UNKNOWN_CALL
    assert calls.claim(mark("new"), 2) is not None


def test_older_generations_and_steps_are_refused() -> None:
    calls = Calls(Sent())
    calls.begin_step("s", 2, 5)
    assert code_of(calls, mark("a", step=9, generation=1)) is RefusalCode.STALE
    assert code_of(calls, mark("b", step=4, generation=2)) is RefusalCode.STALE
    assert calls.claim(mark("c", step=5, generation=2), 1) is not None
    assert calls.claim(mark("d", step=3, generation=3), 2) is not None


def test_a_later_step_drops_the_answers_of_earlier_ones() -> None:
    calls = Calls(Sent())
    call = calls.claim(mark("k", step=1), 1)
    assert call is not None
    calls.finish(call, ({}, b""))
    running = calls.claim(mark("running", step=1), 2)
    assert running is not None
    calls.claim(mark("later", step=2), 3)
    assert code_of(calls, mark("k", step=1, join=True)) is RefusalCode.UNKNOWN_CALL
    assert calls.claim(mark("running", step=1), 4) is None
    calls.finish(running, ({}, b""))
    assert code_of(calls, mark("running", step=1, join=True)) is RefusalCode.UNKNOWN_CALL


def test_a_takeover_can_fetch_the_answers_of_the_step_it_repeats() -> None:
    sent = Sent()
    calls = Calls(sent)
    call = calls.claim(mark("k", step=4, generation=1), 1)
    assert call is not None
    calls.finish(call, ({}, b"x"))
    calls.begin_step("s", 2, 4)
    assert calls.claim(mark("k", step=4, generation=1, join=True), 2) is None
    assert sent[-1] == (2, ({}, b"x"))


def fill(calls: Calls) -> None:
    """Five answers, a quarter more than the memory holds."""
    for number in range(5):
        call = calls.claim(mark(f"k{number}"), number)
        assert call is not None
        calls.finish(call, ({"n": number}, bytes([number]) * (KEPT_BYTES // 4)))


def test_answers_beyond_the_memory_are_on_the_disk() -> None:
    sent = Sent()
    calls = Calls(sent)
    fill(calls)
    for number in range(5):
        assert calls.claim(mark(f"k{number}", join=True), 10 + number) is None
        assert sent[-1] == (10 + number, ({"n": number}, bytes([number]) * (KEPT_BYTES // 4)))
    calls.begin_step("s", 1, 1)
    assert code_of(calls, mark("k0", join=True)) is RefusalCode.UNKNOWN_CALL


def test_too_many_bytes_drop_answers_but_not_the_memory_that_the_calls_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.guest.calls.SHELVED_BYTES", KEPT_BYTES // 4)
    calls = Calls(Sent())
    fill(calls)
    assert code_of(calls, mark("k1")) is RefusalCode.ANSWER_DROPPED
    assert calls.claim(mark("k0"), 8) is None
    assert calls.claim(mark("k4"), 9) is None


def test_an_incomplete_mark_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        Mark({"key": "k"})
    assert refused.value.code is RefusalCode.INVALID_PARAM
