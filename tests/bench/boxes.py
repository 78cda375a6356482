"""What a box costs: a call, 16 boxes at once, claimed warm, started cold beside `docker run`, idle, flooded.

Run by hand: `.venv/bin/python -m tests.bench.boxes [--rounds N] [--idle N ...] [--write-docs] [--plot-python PYTHON]`.
Ways take turns within one run; quote the ratios. Idle memory is what the machine has less available per box, shims and
the engine's own included. With `--write-docs` it writes `docs/performance-boxes.md`, and `docs/boxes.png` when PYTHON
has matplotlib; that takes about four minutes.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coordinator.settings import DEFAULT_IMAGE
from sandbox import guest_folder
from sandbox.box import Box
from sandbox.creation import NAME_PREFIX
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.pool import PoolSettings
from sandbox.requests import CallMark, RunRequest
from tests.bench import flood, guest_layer
from tests.bench.peer_drivers import PLOT
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, FinishOrder, WorkspaceMode
from worker.own_disk import OwnDisks

DOCS = Path(__file__).resolve().parents[2] / "docs"
READY_S = 60.0
KIB = 1024


@contextmanager
def node(directory: Path, pool: PoolSettings | None) -> Iterator[tuple[DockerEngine, Boxes]]:
    """A node's boxes without its queue."""
    name = f"bench-{os.getpid()}-{directory.name}"
    engine = DockerEngine(EngineSettings(name, guest_folder.install(directory / "guest"), directory / "records"))
    disks = OwnDisks(directory / "disks", has_spares=True)
    boxes = Boxes(engine, 600, pool=pool, nursery=directory / "warm", disks=disks)
    boxes.adopt()
    try:
        yield engine, boxes
    finally:
        boxes.close()


def order_for(directory: Path, number: int) -> BoxOrder:
    """A session that works on a private copy of an empty project."""
    session = f"s{number}"
    (directory / "sessions" / session / "spill").mkdir(parents=True)
    (directory / "project").mkdir(exist_ok=True)
    return BoxOrder(
        session=session,
        generation=1,
        session_dir=str(directory / "sessions" / session),
        image=DEFAULT_IMAGE,
        workspace=str(directory / "project"),
        workspace_mode=WorkspaceMode.COPY,
    )


def first_answer(boxes: Boxes, order: BoxOrder) -> float:
    """Seconds from asking for a session's box to what its first command printed."""
    started = time.perf_counter()
    answer = boxes.box_for(order).run(RunRequest(CallMark(order.session, "", order.session, 1, 1), command="echo hi"))
    taken = time.perf_counter() - started
    assert answer.stdout.head == b"hi\n"
    return taken


def docker_run() -> float:
    """Seconds of `docker run` of the same image with the same command."""
    argv = ["docker", "run", "--rm", "--network", "none", "--init", DEFAULT_IMAGE, "bash", "-c", "echo hi"]
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    taken = time.perf_counter() - started
    process.communicate()
    return taken


def starts(directory: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way to a first answer."""
    numbers = iter(range(100_000))
    ways: dict[str, list[float]] = {"warm claim": [], "cold start": [], "docker run": []}
    with ExitStack() as stack:
        _, cold = stack.enter_context(node(directory / "cold", None))
        _, warm = stack.enter_context(node(directory / "warm", PoolSettings(min_idle=1, max_idle=1, least_wants=1)))
        for way, boxes in (("unmeasured", cold), ("unmeasured", warm)):
            end(boxes, order := order_for(directory / way, next(numbers)), first_answer(boxes, order))
        for _ in range(rounds):
            for way, boxes in (("warm claim", warm), ("cold start", cold)):
                # Also before the others' turns: the pool's refill would slow them.
                wait_until(lambda: warm._warm is not None and warm._warm.idle() == 1)
                order = order_for(directory / way, next(numbers))
                ways[way].append(end(boxes, order, first_answer(boxes, order)))
            ways["docker run"].append(docker_run())
    return ways


def end(boxes: Boxes, order: BoxOrder, taken: float) -> float:
    """End the session; what it took comes through."""
    boxes.finish(FinishOrder(box=order, node="", incarnation=""))
    return taken


def wait_until(claim: Callable[[], bool]) -> None:
    """Come back when the claim is true."""
    deadline = time.monotonic() + READY_S
    while not claim():
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.01)


def available_bytes() -> int:
    """What the machine could still give."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * KIB


def guest_bytes(box: Box) -> int:
    """Resident memory of the guest, by the largest process of its container."""
    titles = subprocess.run(
        ["docker", "top", NAME_PREFIX + box.box_id, "-eo", "pid,rss,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return max(int(line.split()[1]) * KIB for line in titles if "guest.pyc" in line and "spawner.pyc" not in line)


def idle(directory: Path, count: int) -> str:
    """What so many idle boxes take, and how long a call takes among them, as a line of a table."""
    with node(directory, None) as (_, boxes):
        before, started = available_bytes(), time.perf_counter()
        orders = [order_for(directory, number) for number in range(count)]
        gate = threading.Semaphore(8)

        def start(order: BoxOrder) -> None:
            with gate:
                boxes.box_for(order)

        threads = [threading.Thread(target=start, args=(order,)) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
        time.sleep(2)
        each = (before - available_bytes()) / count
        one = boxes.box_for(orders[0])
        calls = []
        for number in range(50):
            began = time.perf_counter()
            one.run(RunRequest(CallMark(f"i{number}", "", "i", 1, 1), command="true"))
            calls.append(time.perf_counter() - began)
        return (
            f"| {count} | {each / KIB**2:.1f} MiB | {guest_bytes(one) / KIB**2:.1f} MiB | {count / took:.1f} "
            f"| {statistics.median(calls) * 1000:.2f} ms |"
        )


def call_part(ways: list[guest_layer.Way]) -> list[str]:
    """The section on one call."""
    median = {way.name: statistics.median(way.seconds) for way in ways}
    lines = ["## One call of `true`", "", "| where | median ms | 9 of 10 within ms | × host |", "|---|---:|---:|---:|"]
    for way in ways:
        late = sorted(way.seconds)[int(len(way.seconds) * 0.9)]
        middle, ratio = median[way.name] * 1000, median[way.name] / median["host"]
        lines.append(f"| {way.name} | {middle:.2f} | {late * 1000:.2f} | {ratio:.2f} |")
    switched, plain = median["box, switch of user"], median["box, commands as root"]
    return [
        *lines,
        "",
        f"- box with the switch of user: {switched / median['host']:.2f}× the host (wanted ≤ 1.8), "
        f"{switched / median['host, switch of user']:.2f}× the host with the same switch (≤ 1.4), "
        f"{switched / median['plain container, switch of user']:.2f}× a process in a plain container",
        f"- box without: {plain / median['host']:.2f}× the host (≤ 1.25), "
        f"{plain / median['plain container']:.2f}× a process in a plain container",
        f"- Read of 1 KB: {median['box, Read of 1 KB'] * 1000:.2f} ms (≤ 0.5)",
        "",
    ]


def crowd_part(rates: dict[str, list[float]]) -> list[str]:
    """The section on 16 boxes at once."""
    median = {name: statistics.median(each) for name, each in rates.items()}
    lines = [
        f"## {guest_layer.BOXES} boxes at once",
        "",
        "| where | commands a second | of the host |",
        "|---|---:|---:|",
    ]
    lines += [f"| {name} | {rate:.0f} | {rate / median['host']:.0%} |" for name, rate in median.items()]
    return [*lines, "", "Wanted: 60 % with the switch of user, 85 % without.", ""]


def start_part(ways: dict[str, list[float]]) -> list[str]:
    """The section on starts."""
    floor = statistics.median(ways["docker run"])
    lines = ["## To the first answer", "", "| way | median ms | worst ms | × `docker run` |", "|---|---:|---:|---:|"]
    for way, seconds in ways.items():
        middle = statistics.median(seconds)
        lines.append(f"| {way} | {middle * 1000:.1f} | {max(seconds) * 1000:.1f} | {middle / floor:.2f} |")
    return [*lines, "", "With a private copy on a disk of its own. Wanted: warm ≤ 10 ms, cold ≤ 1.3×.", ""]


def idle_part(directory: Path, counts: list[int]) -> list[str]:
    """The section on boxes that stand idle, and on the guest's folder."""
    folder = guest_folder.install(directory / "guest")
    disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
    head = "| boxes | memory of the machine, each | guest, resident | starts a second | a call among them |"
    lines = ["## Idle", "", head, "|---:|---:|---:|---:|---:|"]
    lines += [idle(directory / f"idle-{count}", count) for count in counts]
    return [
        *lines,
        "",
        f"The guest's folder has {disk / KIB**2:.1f} MiB on disk. Wanted: guest ≤ 12 MB, folder ≤ 15.",
        "",
    ]


def flood_part() -> list[str]:
    """The section on floods of output."""
    argv = [sys.executable, "-m", "tests.bench.flood"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [f"## {flood.__doc__.splitlines()[0].partition(':')[0] if flood.__doc__ else ''}", "", printed]


def plot(parts: dict[str, dict[str, float]], python: str) -> bool:
    """Draw medians in milliseconds; whether that could be done."""
    argv = [python, "-c", PLOT, json.dumps(parts), str(DOCS / "boxes.png")]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=int, nargs="*", default=[50, 200], help="how many to let stand, one run each")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--plot-python", default=sys.executable, help="an interpreter with matplotlib")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    directory = Path(tempfile.mkdtemp(prefix="hog-bench-"))
    directory.chmod(0o755)
    text = [
        "# What a box costs",
        "",
        f"Measured by `tests/bench/boxes.py` on {os.cpu_count()} processors with a load of {load:.1f} before it began, "
        f"Linux {platform.release()}, Python {platform.python_version()}; all ways in turns within one run. Machines "
        "differ: read the ratios, and where the load is above the number of processors not even those closely.",
        "",
    ]

    def add(part: list[str]) -> None:
        text.extend(part)
        print("\n".join(part), flush=True)

    try:
        with node(directory / "layer", None) as (engine, _):
            ways = guest_layer.one_call(engine, directory / "one", 4 * arguments.rounds)
            add(call_part(ways))
            add(crowd_part(guest_layer.many_calls(engine, directory / "many", max(1, arguments.rounds // 4))))
        first = starts(directory, arguments.rounds)
        add(start_part(first))
        add(idle_part(directory, arguments.idle))
        add(flood_part())
    finally:
        shutil.rmtree(directory)
    if arguments.write_docs:
        calls = {way.name: statistics.median(way.seconds) * 1000 for way in ways}
        begins = {way: statistics.median(seconds) * 1000 for way, seconds in first.items()}
        if plot({"one call of true": calls, "to the first answer": begins}, arguments.plot_python):
            text[4:4] = ["![Medians of one run](boxes.png)", ""]
        (DOCS / "performance-boxes.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
