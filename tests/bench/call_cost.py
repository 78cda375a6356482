"""What one call of `true` costs: on the host, in the guest, by `docker exec`, and through the whole path.

Run by hand: `.venv/bin/python tests/bench/call_cost.py [--calls N] [--write docs/performance.md]`. The ways take turns
within one run, so that a machine whose speed drifts slows all of them alike; quote the ratios, not the milliseconds.
"""

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import docker
from docker.models.containers import Container
from redis.exceptions import RedisError

from coordinator.cluster.execute import Job
from coordinator.cluster.parts import Cluster
from coordinator.embedded import Embedded
from coordinator.session.partition import Travel
from coordinator.session.request import new_session_id
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from sandbox import guest_folder
from sandbox.box import Box
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec
from worker.contract.orders import BoxOrder, CallKey, CallOrder, CallOutcome, NodeLife, Policy, WorkspaceMode

AGENT = 54_321
ROUND = 10
"""Calls of one way before the next takes its turn."""


@dataclass
class Way:
    """One way of running `true`, and how long each call took."""

    name: str
    once: Callable[[], Awaitable[float | None]]
    """One call; returns its seconds, or None to have them measured around it."""
    per_round: int = ROUND
    seconds: list[float] = field(default_factory=list)

    async def round(self) -> None:
        """Take a turn."""
        for _ in range(self.per_round):
            started = time.perf_counter()
            taken = await self.once()
            self.seconds.append(time.perf_counter() - started if taken is None else taken)

    @property
    def median_ms(self) -> float:
        """Median of all calls."""
        return statistics.median(self.seconds) * 1000

    @property
    def p99_ms(self) -> float:
        """99th percentile of all calls."""
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] * 1000


HOST_LOOP = """
import subprocess, sys, time
user = int(sys.argv[1])
switch = dict(user=user, group=user, extra_groups=[user + 1], start_new_session=True) if user else {}
for _ in sys.stdin:
    started = time.perf_counter()
    subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=True, **switch)
    print(time.perf_counter() - started, flush=True)
"""


class Host:
    """The host's own fork and exec, from a small process: a large one, such as this, forks more slowly."""

    def __init__(self, user: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST_LOOP, str(user)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def once(self) -> float:
        """Run `true` once; the seconds it took, without the way to the small process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the small process."""
        self._process.communicate()


def guest(box: Box) -> Callable[[], Awaitable[None]]:
    """A call of the guest over its open link."""
    session = new_session_id()
    step = 0

    async def once() -> None:
        nonlocal step
        step += 1
        mark = CallMark(f"{session}:1:{step}:0:1", "d", session, 1, step)
        answer = box.run(RunRequest(mark, command="true"))
        assert answer.exit_code == 0

    return once


def exec_in(container: Container) -> Callable[[], Awaitable[None]]:
    """One `docker exec` through the Docker SDK."""

    async def once() -> None:
        assert container.exec_run(["bash", "-c", "true"]).exit_code == 0

    return once


def whole_path(cluster: Cluster, node: NodeLife, box: BoxOrder) -> Callable[[], Awaitable[None]]:
    """A call from the coordinator through Redis and the worker to the box and back."""
    step = 0

    async def once() -> None:
        nonlocal step
        step += 1
        assert await cluster.store.begin_step(box.session, 1, step)
        order = CallOrder(
            key=CallKey(session=box.session, generation=1, step=step, index=0),
            call_id="c",
            node=node.node,
            incarnation=node.incarnation,
            tool="Bash",
            arguments={"command": "true"},
            policy=Policy.BOXED,
            principal="bench",
            sent_at=time.time(),
            box=box,
        )
        outcomes: list[CallOutcome] = []

        async def keep(outcome: CallOutcome) -> None:
            outcomes.append(outcome)

        await cluster.executor.run(Travel.CHAIN, [Job(order, 120.0)], node, asyncio.Event(), keep)
        assert outcomes[0].result is not None
        assert outcomes[0].result["status"] == "success", outcomes[0]

    return once


@contextmanager
def bare_box(state_dir: Path, workspace: Path, uid: int) -> Iterator[Box]:
    """A box of its own, without worker or Redis."""
    engine = DockerEngine(
        EngineSettings(
            node=f"bench-{os.getpid()}-{uid}",
            guest_folder=guest_folder.install(state_dir / "guest"),
            records_dir=state_dir / f"records-{uid}",
        )
    )
    spill = state_dir / "spill"
    spill.mkdir(exist_ok=True)
    box = engine.start(BoxSpec(DEFAULT_IMAGE, workspace, spill, uid, uid), session="bench", generation=1)
    try:
        yield box
    finally:
        box.close()
        engine.close()


@contextmanager
def bare_container() -> Iterator[Container]:
    """A plain container for `docker exec`."""
    client = docker.from_env()
    container = client.containers.run(
        DEFAULT_IMAGE, ["sleep", "3600"], detach=True, network_mode="none", init=True, auto_remove=True
    )
    try:
        yield container
    finally:
        container.remove(force=True)
        client.close()


async def measure(calls: int) -> list[Way]:
    """Return every way with its measurements."""
    with tempfile.TemporaryDirectory(prefix="sandhog-bench-") as scratch:
        state_dir, workspace = Path(scratch) / "state", Path(scratch) / "workspace"
        for directory in (state_dir, workspace):
            directory.mkdir()
        os.chown(workspace, AGENT, AGENT)
        embedded = Embedded(state_dir)
        try:
            async with open_cluster(embedded.redis_url, state_dir) as cluster:
                session = new_session_id()
                (state_dir / "sessions" / session).mkdir(parents=True)
                await wait_for_redis(cluster, session)
                node = await cluster.placement.place(session)
                order = BoxOrder(
                    session=session,
                    generation=1,
                    session_dir=str(state_dir / "sessions" / session),
                    image=DEFAULT_IMAGE,
                    workspace=str(workspace),
                    workspace_mode=WorkspaceMode.BIND,
                )
                await cluster.placement.prepare(order, node)
                with (
                    bare_box(state_dir, workspace, AGENT) as switched,
                    bare_box(state_dir, workspace, 0) as plain,
                    bare_container() as container,
                    closing(Host(0)) as plain_host,
                    closing(Host(AGENT)) as switched_host,
                ):
                    ways = [
                        Way("host", plain_host.once),
                        Way("host, with the switch of user", switched_host.once),
                        Way("guest layer, commands as root (no switch)", guest(plain)),
                        Way("guest layer, with the switch of user", guest(switched)),
                        Way("whole path (coordinator, Redis, worker, box)", whole_path(cluster, node, order)),
                        Way("docker exec (SDK)", exec_in(container), per_round=2),
                    ]
                    for way in ways:
                        await way.round()
                        way.seconds.clear()
                    for _ in range(calls // ROUND):
                        for way in ways:
                            await way.round()
                await cluster.placement.finish(order, node, apply=False)
                return ways
        finally:
            embedded.close()


async def wait_for_redis(cluster: Cluster, session: str) -> None:
    """Open the session as soon as Redis answers."""
    while True:
        try:
            await cluster.store.open_session(session)
            return
        except RedisError:
            await asyncio.sleep(0.05)


def table(ways: list[Way]) -> str:
    """Return the measurements as a Markdown table."""
    base = ways[0].median_ms
    rows = ["| one call of `true` | median ms | p99 ms | × host |", "|---|---|---|---|"]
    rows += [f"| {w.name} | {w.median_ms:.2f} | {w.p99_ms:.2f} | {w.median_ms / base:.2f} |" for w in ways]
    return "\n".join(rows)


def ratios(ways: list[Way]) -> str:
    """Return the ratios that the design promises, one a line."""
    plain, switched, guest_plain, guest_switched, path, execs = (way.median_ms for way in ways)
    return "\n".join(
        [
            f"- guest layer with the switch / host: {guest_switched / plain:.2f} (wanted: at most 1.8)",
            f"- guest layer with the switch / host with the switch: {guest_switched / switched:.2f} (at most 1.4)",
            f"- guest layer without a switch / host: {guest_plain / plain:.2f} (at most 1.25)",
            f"- whole path minus guest layer: {path - guest_switched:.2f} ms (at most 5)",
            f"- docker exec / whole path: {execs / path:.1f} (at least 8)",
        ]
    )


def main() -> None:
    """Measure, print, and write the document if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300, help="calls of each way")
    parser.add_argument("--write", type=Path, help="file for the table")
    given = parser.parse_args()
    ways = asyncio.run(measure(given.calls))
    text = f"{table(ways)}\n\n{ratios(ways)}\n"
    print(text)
    if given.write:
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
        given.write.write_text(
            "# Performance\n\nMeasured by `tests/bench/call_cost.py`, all ways in turns within one run "
            f"({given.calls} calls of each; docker exec fewer) on {machine}. "
            f"Machines differ: read the ratios.\n\n{text}"
        )


if __name__ == "__main__":
    main()
