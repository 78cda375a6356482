"""One command and one small read in a box beside the host's own, and how many commands 16 boxes run at once.

Ways take turns within one run: what else the machine does hits all of them alike. The plain container shows what the
engine's isolation itself costs a command (control groups, layered files, system call filter), before anything of ours.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.settings import DEFAULT_IMAGE
from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.requests import CallMark, ReadRequest, RunRequest
from sandbox.spec import BoxSpec

AGENT = 54_321
TURN = 5
BOXES = 16
SPELL_S = 2.0
FILE_BYTES = 1024
LOOP = """
import subprocess, sys, time
user = int(sys.argv[1])
switch = dict(user=user, group=user, extra_groups=[user + 1], start_new_session=True) if user else {}
for _ in sys.stdin:
    started = time.perf_counter()
    subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=True, **switch)
    print(time.perf_counter() - started, flush=True)
"""
MANY = """
import subprocess, sys, threading, time
count, until = [], time.perf_counter() + float(sys.argv[1])
def work():
    while time.perf_counter() < until:
        subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        count.append(1)
threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(count) / float(sys.argv[1]))
"""


@dataclass
class Way:
    """One way of doing a thing, and the seconds it took each time."""

    name: str
    once: Callable[[], float]
    seconds: list[float] = field(default_factory=list)


@contextmanager
def small_process(*argv: str) -> Iterator[Callable[[], float]]:
    """A process that runs a command each time it is asked, and tells what that took by its own clock."""
    with subprocess.Popen([*argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        ask, said = process.stdin, process.stdout
        assert ask is not None
        assert said is not None

        def once() -> float:
            print(file=ask, flush=True)
            return float(said.readline())

        yield once
        ask.close()


def started(engine: DockerEngine, directory: Path, uid: int) -> Box:
    """A box with a workspace of its own."""
    workspace, spill = directory / "workspace", directory / "spill"
    for each in (workspace, spill):
        each.mkdir(parents=True)
    os.chown(workspace, uid, uid)
    return engine.start(BoxSpec(DEFAULT_IMAGE, workspace, spill, uid, uid), "s", 1)


class Asker:
    """Asks one box; each call has a key of its own."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._step = 0

    def _mark(self) -> CallMark:
        self._step += 1
        return CallMark(f"k{self._step}", "", "s", 1, self._step)

    def run(self, command: str = "true") -> float:
        """Seconds of a command."""
        began = time.perf_counter()
        assert self._box.run(RunRequest(self._mark(), command=command)).exit_code == 0
        return time.perf_counter() - began

    def read(self) -> float:
        """Seconds of reading a small file."""
        began = time.perf_counter()
        assert len(self._box.read(ReadRequest(self._mark(), "small")).text) == FILE_BYTES
        return time.perf_counter() - began


def one_call(engine: DockerEngine, directory: Path, rounds: int) -> list[Way]:
    """Every way with its measurements."""
    container = ["docker", "run", "--rm", "-i", "--init", "--network", "none", DEFAULT_IMAGE, "python3", "-c", LOOP]
    with ExitStack() as stack:
        boxes = [started(engine, directory / name, uid) for name, uid in (("plain", 0), ("switched", AGENT))]
        for box in boxes:
            stack.callback(box.close)
        plain, switched = (Asker(box) for box in boxes)
        switched.run(f"head -c {FILE_BYTES} /dev/zero | tr '\\0' x > small")
        python = [sys.executable, "-c", LOOP]
        ways = [
            Way("host", stack.enter_context(small_process(*python, "0"))),
            Way("host, switch of user", stack.enter_context(small_process(*python, str(AGENT)))),
            Way("plain container", stack.enter_context(small_process(*container, "0"))),
            Way("plain container, switch of user", stack.enter_context(small_process(*container, str(AGENT)))),
            Way("box, commands as root", plain.run),
            Way("box, switch of user", switched.run),
            Way("box, Read of 1 KB", switched.read),
        ]
        for number in range(rounds + 1):
            for way in ways:
                took = [way.once() for _ in range(TURN)]
                way.seconds += took if number else []
        return ways


def many_calls(engine: DockerEngine, directory: Path, spells: int) -> dict[str, list[float]]:
    """Commands a second of 16 boxes at once and of 16 threads of the host, for each spell."""
    rates: dict[str, list[float]] = {"host": [], "boxes, commands as root": [], "boxes, switch of user": []}
    with ExitStack() as stack:
        sets = {}
        for name, uid in (("boxes, commands as root", 0), ("boxes, switch of user", AGENT)):
            boxes = [started(engine, directory / f"{uid}-{number}", uid) for number in range(BOXES)]
            for box in boxes:
                stack.callback(box.close)
            sets[name] = [Asker(box) for box in boxes]
        for _ in range(spells):
            argv = [sys.executable, "-c", MANY, str(SPELL_S), str(BOXES)]
            printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
            rates["host"].append(float(printed))
            for name, askers in sets.items():
                rates[name].append(_rate(askers))
    return rates


def _rate(askers: list[Asker]) -> float:
    until, counts = time.perf_counter() + SPELL_S, [0] * len(askers)

    def work(number: int) -> None:
        while time.perf_counter() < until:
            askers[number].run()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(askers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SPELL_S
