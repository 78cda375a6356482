"""What a node does again and again."""

import threading
from collections.abc import Callable

import pytest

from worker.upkeep import Upkeep

Until = Callable[..., None]


def test_jobs_run_at_once_in_turn_and_again_also_after_one_failed(
    until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def fail() -> None:
        ran.append("fails")
        raise OSError("the disk is away")

    upkeep = Upkeep({"fails": fail, "works": lambda: ran.append("works")}, 0.01)
    upkeep.start()
    until(lambda: len(ran) >= 4, "both ran twice")
    upkeep.close()

    assert ran[:4] == ["fails", "works"] * 2
    assert "upkeep failed" in caplog.text
    assert "upkeep" not in {thread.name for thread in threading.enumerate()}


def test_closing_without_a_start_is_no_error() -> None:
    Upkeep({}, 1.0).close()
