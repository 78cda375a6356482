"""What a box costs: claimed warm, started cold beside `docker run`, standing idle in numbers.

Run by hand: `.venv/bin/python tests/bench/boxes.py [--rounds N] [--idle N ...]`. Ways take turns within one run; quote
the ratios. Idle memory is what the machine has less available per box, shims and the engine's own included.
"""

import argparse
import os
import shutil
import statistics
import subprocess
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
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, FinishOrder, WorkspaceMode

READY_S = 60.0
KIB = 1024


@contextmanager
def node(directory: Path, pool: PoolSettings | None) -> Iterator[tuple[DockerEngine, Boxes]]:
    """A node's boxes without its queue."""
    name = f"bench-{os.getpid()}-{directory.name}"
    engine = DockerEngine(EngineSettings(name, guest_folder.install(directory / "guest"), directory / "records"))
    boxes = Boxes(engine, 600, pool=pool, nursery=directory / "warm")
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
    (directory / "warm").mkdir()
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


def idle(directory: Path, count: int) -> None:
    """Print what so many idle boxes take, and how long a call takes among them."""
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
        print(
            f"{count} idle boxes: {each / KIB**2:.1f} MiB each of the machine's memory, guest "
            f"{guest_bytes(one) / KIB**2:.1f} MiB resident, {count / took:.1f} starts/s, "
            f"a call of `true` among them {statistics.median(calls) * 1000:.2f} ms"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=int, nargs="*", default=[], help="how many boxes to let stand, one run each")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hog-bench-"))
    directory.chmod(0o755)
    try:
        ways = starts(directory, arguments.rounds)
        print(f"to the first answer, {arguments.rounds} rounds: median / worst in ms, and beside `docker run`")
        floor = statistics.median(ways["docker run"])
        for way, seconds in ways.items():
            middle = statistics.median(seconds)
            print(f"  {way:12} {middle * 1000:8.1f} {max(seconds) * 1000:8.1f} {middle / floor:8.2f}x")
        for count in arguments.idle:
            idle(directory / f"idle-{count}", count)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
