"""Lanes that are held for too long, and the node that starts itself anew."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.orders import builtin_call, call_order
from tools.base import ToolResult
from worker.anew import Anew
from worker.gates.gate import GateCall
from worker.gates.lane import GRACE_S, START_S, LaneGate

DONE = ToolResult(status="success", text="done")
Until = Callable[..., None]

ANEW = """
import os, sys, threading
from worker.anew import Anew
fd = int(sys.argv[1])
os.write(fd, f"{os.getpid()} ".encode())
if os.environ.get("AGAIN"):
    sys.exit(7)
os.environ["AGAIN"] = "yes"
stuck = threading.Event()
threading.Thread(target=stuck.wait).start()
Anew(lambda: os.write(fd, b"drained "), lambda: 0, lambda: os.write(fd, b"let-go ")).begin()
stuck.wait()
"""


@pytest.fixture
def call(tmp_path: Path) -> GateCall:
    return builtin_call(call_order("Bash", {"command": "true", "timeout_ms": 1000}), tmp_path)


def test_a_lane_is_lost_once_its_call_is_long_overdue(call: GateCall, until: Until) -> None:
    now, told, go = [0.0], [], threading.Event()
    gate = LaneGate(8, lambda: told.append(len(gate.lost())), lambda: now[0])

    def hang(_: GateCall) -> ToolResult:
        assert go.wait(60)
        return DONE

    threads = [threading.Thread(target=gate, args=(call, hang)) for _ in range(3)]
    for thread in threads[:1]:
        thread.start()
    until(lambda: gate.running == 1, "a call runs")
    now[0] = call.tool.timeout_s(call.arguments) + GRACE_S + START_S - 0.1
    gate.look()
    assert (gate.lost(), gate.running) == ([], 1)
    now[0] += 0.2
    gate.look()
    assert (gate.lost(), gate.running, told) == ([str(call.order.key)], 0, [])
    for thread in threads[1:]:
        thread.start()
    until(lambda: gate.running == 2, "two more run")
    now[0] *= 2
    gate.look()
    gate.look()
    assert told == [3]
    go.set()
    for thread in threads:
        thread.join(60)
    assert gate.lost() == []


def test_a_call_comes_through_unchanged(call: GateCall) -> None:
    gate = LaneGate(4, lambda: None)
    assert gate(call, lambda _: DONE) is DONE

    def fail(_: GateCall) -> ToolResult:
        raise KeyError

    with pytest.raises(KeyError):
        gate(call, fail)
    assert gate.running == 0


def test_a_process_starts_anew_in_its_place_under_a_thread_that_hangs() -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", ANEW, str(write_end)], pass_fds=[write_end], cwd=Path.cwd())
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        words = pipe.read().split()

    assert process.wait(60) == 7
    assert words == [str(process.pid), "drained", "let-go", str(process.pid)]


def test_calls_that_may_still_end_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced, left = threading.Event(), [3]
    at_the_end = []

    def running() -> int:
        left[0] -= 1
        return left[0]

    def replace() -> None:
        at_the_end.append(left[0])
        replaced.set()

    monkeypatch.setattr("worker.anew.replace_process", replace)
    Anew(lambda: None, running, lambda: None).begin()

    assert replaced.wait(60)
    assert at_the_end == [0]
