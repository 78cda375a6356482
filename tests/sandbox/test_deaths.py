"""Why a container ended, where the engine's events told of it and where they were missed."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.deaths import DEAD_MAN_EXIT, SIGKILL_EXIT, Deaths
from sandbox.errors import LossReason


class Events:
    """The engine's events, as long as the stream is open."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._events
        self._closed.wait()

    def close(self) -> None:
        self._closed.set()


def event(action: str, at_s: float = 1.0, **attributes: str) -> dict[str, Any]:
    return {"Action": action, "timeNano": int(at_s * 1e9), "Actor": {"Attributes": {"name": "box", **attributes}}}


@pytest.mark.parametrize(
    ("exit_code", "had_oom", "reason", "words"),
    [
        (SIGKILL_EXIT, True, LossReason.OOM, "memory limit"),
        (SIGKILL_EXIT, False, LossReason.KILLED, "was killed"),
        (0, True, LossReason.ENDED, "exit code 0"),
        (DEAD_MAN_EXIT, False, LossReason.ENDED, "no heartbeat"),
        (None, True, LossReason.ENDED, "is gone"),
    ],
)
def test_an_end_whose_event_was_missed_is_told_by_what_the_engine_says_of_the_container(
    exit_code: int | None, had_oom: bool, reason: LossReason, words: str
) -> None:
    deaths = Deaths(Events)
    try:
        told, detail = deaths.reason("box", 0.0, had_oom=had_oom, exit_code=exit_code)
    finally:
        deaths.close()
    assert told is reason
    assert words in detail


def test_an_end_that_an_event_told_of_is_not_put_down_to_a_command_that_the_kernel_took_long_before() -> None:
    killed = event("die", 100.0, exitCode=str(SIGKILL_EXIT))
    deaths = Deaths(lambda: Events(event("oom", 1.0), killed))
    try:
        told, _ = deaths.reason("box", 60.0, had_oom=True, exit_code=SIGKILL_EXIT)
    finally:
        deaths.close()
    assert told is LossReason.KILLED
