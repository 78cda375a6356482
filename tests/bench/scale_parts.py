"""What the scale measurements are made of: a cluster, a load of sessions, and meters around it."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import Turn
from coordinator.endpoint.scripted_wire import stream_of
from coordinator.session.approvals import Never
from coordinator.session.call_events import CallFinished
from coordinator.session.events import Event
from coordinator.session.limits import Limits
from coordinator.session.request import SessionRequest
from coordinator.session.runner import SessionRunner
from coordinator.session.step_events import ModelReplied, StepStarted
from coordinator.session.workspace_choice import Chosen
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from tests.chaos.parts import RedisServer, Worker, until
from worker.contract import keys
from worker.contract.orders import Policy, WorkspaceMode

ROOT = Path(__file__).parents[2]
AGENT = 54_321
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024
MEETING = 2
"""The step in which all sessions wait for each other; what is measured begins with its reply."""


@dataclass(frozen=True)
class Reading:
    """All meters at one moment."""

    at: float
    calls: int
    coordinator_s: float
    nodes_s: float
    redis_s: float
    endpoint_s: float
    commands: int

    def since(self, before: "Reading") -> "Cost":
        """Return what was spent from another reading to this one."""
        calls = max(self.calls - before.calls, 1)
        return Cost(
            calls=self.calls - before.calls,
            per_s=(self.calls - before.calls) / max(self.at - before.at, 1e-9),
            coordinator_ms=(self.coordinator_s - before.coordinator_s) * 1000 / calls,
            node_ms=(self.nodes_s - before.nodes_s) * 1000 / calls,
            redis_ms=(self.redis_s - before.redis_s) * 1000 / calls,
            endpoint_ms=(self.endpoint_s - before.endpoint_s) * 1000 / calls,
            commands=(self.commands - before.commands) / calls,
        )


@dataclass(frozen=True)
class Cost:
    """What calls cost, each in milliseconds of CPU."""

    calls: int
    per_s: float
    coordinator_ms: float
    node_ms: float
    redis_ms: float
    endpoint_ms: float
    commands: float
    """Redis commands a call, those inside scripts not counted."""


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, its ended children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS


def memory_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@dataclass
class Stage:
    """A cluster whose coordinator is this process."""

    directory: Path
    project: Path
    server: RedisServer
    nodes: list[int]
    """Process ids."""
    cluster: Cluster
    client: redis.Redis

    def redis_bytes(self) -> int:
        """Return what Redis' data takes, once it has given back what it can."""
        return int(self.client.info("memory")["used_memory"])


@dataclass
class Load:
    """Sessions that are run at once, and what was seen of them."""

    stage: Stage
    endpoint: int
    """Process id of the model."""
    calls: int = 0
    readings: list[Reading] = field(default_factory=list)
    """At the meeting, every `every` calls, and when the first session is done."""
    every: int = 0
    times_ms: list[float] = field(default_factory=list)
    """Of each call, from dispatch to answer."""
    gaps_s: list[tuple[int, int, float]] = field(default_factory=list)
    """The session's number, a step of it, and seconds from its beginning to the next one's."""
    busy_bytes: int = 0
    """Memory of the coordinator and of Redis at the end of what was measured."""
    busy_redis_bytes: int = 0
    is_done: bool = False

    def read(self) -> None:
        """Take a reading."""
        stage = self.stage
        commands = int(stage.client.info("stats")["total_commands_processed"])
        self.readings.append(
            Reading(
                at=time.perf_counter(),
                calls=self.calls,
                coordinator_s=time.process_time(),
                nodes_s=sum(cpu_s(pid) for pid in stage.nodes),
                redis_s=cpu_s(stage.server.process.pid),
                endpoint_s=cpu_s(self.endpoint),
                commands=commands,
            )
        )

    def sink(self, session: int) -> "Sink":
        """Return the sink of the session with this number."""
        return Sink(self, session)

    @property
    def cost(self) -> Cost:
        """From the meeting to the first session's end."""
        return self.readings[-1].since(self.readings[0])

    def parts(self) -> list[Cost]:
        """From each reading to the next."""
        return [after.since(before) for before, after in zip(self.readings, self.readings[1:], strict=False)]


class Sink:
    """Counts one session's events."""

    def __init__(self, load: Load, session: int) -> None:
        self._load, self._session = load, session
        self._step, self._at = 0, 0.0

    def __call__(self, event: Event) -> None:
        load = self._load
        match event:
            case StepStarted():
                now = time.perf_counter()
                if self._step > MEETING:
                    load.gaps_s.append((self._session, self._step, now - self._at))
                self._step, self._at = event.step, now
            case CallFinished():
                assert event.status == "success", event
                if load.readings and not load.is_done:
                    load.calls += 1
                    load.times_ms.append(event.time_ms)
                    if load.every and load.calls % load.every == 0:
                        load.read()
            case ModelReplied() if event.step == MEETING and not load.readings:
                load.read()
            case ModelReplied() if not event.calls and not load.is_done:
                load.is_done = True
                load.read()
                load.busy_bytes, load.busy_redis_bytes = memory_bytes(), load.stage.redis_bytes()


@contextlib.asynccontextmanager
async def opened(nodes: int = 1, places: int = 0, lanes: int | None = None) -> AsyncIterator[Stage]:
    """Yield a cluster; with `places` its nodes have boxes, else they answer at once."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/tmp") as scratch:
        directory = Path(scratch)
        project = _project(directory)
        server = RedisServer(directory)
        server.start()
        names = [f"scale-{os.getpid()}-{number}" for number in range(nodes)]
        with contextlib.ExitStack() as stack:
            stack.callback(server.kill)
            started = [stack.enter_context(_node(name, directory, server, places, lanes)) for name in names]
            client = stack.enter_context(server.client())
            until(lambda: all(client.exists(keys.lease(name)) for name in names), "the nodes are there")
            async with open_cluster(server.url, directory) as cluster:
                yield Stage(directory, project, server, started, cluster, client)


def _project(directory: Path) -> Path:
    """Make the workspace of all sessions, below a directory that their boxes can enter."""
    directory.chmod(0o755)
    project = directory / "project"
    project.mkdir()
    if os.geteuid() == 0:
        os.chown(project, AGENT, AGENT)
    return project


@contextlib.contextmanager
def _node(name: str, directory: Path, server: RedisServer, places: int, lanes: int | None) -> Iterator[int]:
    if places:
        worker = Worker(name, directory, server.url, places, lanes)
        worker.start()
        try:
            yield worker.process.pid
        finally:
            worker.end()
        return
    argv = [sys.executable, "-m", "tests.bench.answering_node", name, server.url]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def model(
    sessions: int, steps: int, calls: int, bounds_s: tuple[float, float] = (0.0, 0.0)
) -> Iterator[tuple[str, int]]:
    """Yield address and process id of a scripted model that takes its time within these bounds."""
    numbers = (sessions, steps, calls, *bounds_s)
    argv = [sys.executable, "-m", "tests.bench.model_server", *map(str, numbers)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def chunks(calls: int) -> int:
    """Return in how many chunks the scripted model's reply with so many calls comes."""
    one = {"id": "c", "type": "function", "function": {"name": "Bash", "arguments": json.dumps({"command": "true"})}}
    message = {"content": "", "tool_calls": [one] * calls}
    told = stream_of(message, {}, finish_reason="tool_calls", usage={}, chunk_chars=Turn().chunk_chars)
    # The last event is no chunk.
    return len(list(told)) - 1


async def run(
    stage: Stage,
    sessions: int,
    steps: int,
    calls: int,
    *,
    bounds_s: tuple[float, float] = (0.0, 0.0),
    every: int = 0,
    context_tokens: int | None = None,
) -> Load:
    """Run sessions at once, to their end.

    Args:
        stage: Where.
        sessions: How many.
        steps: Of each, behind one to warm up.
        calls: Of each step.
        bounds_s: The least and the most time that the model takes for a reply.
        every: Take readings so many calls apart.
        context_tokens: The model's window.
    """
    chosen = Chosen(stage.project, WorkspaceMode.BIND, "measured", Policy.BOXED, False)
    request = SessionRequest(
        "0",
        chosen,
        DEFAULT_IMAGE,
        Limits(steps=steps + 10),
        has_project_notes=False,
        task_depth=0,
        context_tokens=context_tokens,
    )
    with model(sessions, steps, calls, bounds_s) as (base_url, endpoint):
        client = ModelClient(ModelSettings("scripted", base_url=base_url))
        load = Load(stage, endpoint, every=every)
        try:
            runners = [
                SessionRunner(
                    replace(request, prompt=str(number)),
                    cluster=stage.cluster,
                    model=client,
                    approver=Never(),
                    sinks=[load.sink(number)],
                )
                for number in range(sessions)
            ]
            results = await asyncio.gather(*[runner.run(asyncio.Event()) for runner in runners])
        finally:
            await client.close()
    failed = [result.stop_reason for result in results if result.status != "completed"]
    assert not failed, failed[:3]
    gc.collect()
    return load
