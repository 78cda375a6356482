"""What a person sees of a batch."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from rich.console import Console

from coordinator.batch.lines import CheckLine, ErrorLine, ResultLine
from coordinator.batch.shown import Screen, Show
from coordinator.batch.tasks import Entry, Turn


def turn(name: str) -> Turn:
    return Turn(Entry(name, 1, 0, 1, 1, False), 1)


def line(name: str, **fields: object) -> ResultLine:
    return ResultLine.model_validate(
        {"id": name, "status": "completed", "stop_reason": "done", "steps": 2, "seconds": 1.5, **fields}
    )


def ticking() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 30.0


def shown(console: Console, *, is_live: bool) -> None:
    clock = ticking()
    with Show(console, 100, done=10, is_live=is_live, clock=lambda: next(clock)) as show:
        for name, fields in (
            ("a\x1b[31m", {"cost": 0.25}),
            ("b", {"check": CheckLine(command="c", exit_code=1, passed=False, output="")}),
            ("c", {"status": "failed", "error": ErrorLine(message="no box", tries=3)}),
            ("d", {"status": "stopped", "stop_reason": "max_steps: 2"}),
        ):
            show.started(turn(name))
            show.finished(turn(name), line(name, **fields))


def test_a_pipe_gets_a_line_for_each_run_that_finished() -> None:
    out = io.StringIO()
    shown(Console(file=out, highlight=False), is_live=False)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("11/100 a")
    assert "\x1b" not in out.getvalue(), "an id cannot draw"
    assert lines[0].endswith("completed · 2 steps · 1.5 s · $0.2500")
    assert lines[1] == "12/100 b: completed · check failed · 2 steps · 1.5 s"
    assert lines[2] == "13/100 c: infrastructure: no box · 2 steps · 1.5 s"
    assert lines[3] == "14/100 d: stopped: max_steps: 2 · 2 steps · 1.5 s"


def test_a_terminal_gets_a_bar_with_rate_cost_and_what_is_left() -> None:
    out = io.StringIO()
    shown(Console(file=out, highlight=False, force_terminal=True, width=140), is_live=True)
    drawn = out.getvalue()
    assert "14/100" in drawn
    assert "0 running · 2 failed · $0.2500 · 2.0/min · about 43 min left" in drawn


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("ends", [os.pipe, os.openpty])
def test_who_reads_it_may_leave(ends: Callable[[], tuple[int, int]], is_live: bool) -> None:
    reader, writer = ends()
    os.close(reader)
    gone = os.fdopen(writer, "w", buffering=1)
    try:
        with pytest.raises(OSError, match=r"Broken pipe|Input/output error"):
            print("it is gone", file=gone)
        shown(Screen(file=gone, highlight=False, force_terminal=is_live), is_live=is_live)
    finally:
        # What could not be written is still in its buffer.
        with suppress(OSError):
            gone.close()
