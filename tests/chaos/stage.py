"""The stage of a chaos run: a cluster under load, what the harness knows of it, and its end."""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from coordinator.endpoint.scripted import ScriptedEndpoint
from tests.chaos.causes import Done
from tests.chaos.checker import redis_leftovers
from tests.chaos.claims import Call, claimed, has_ended, without_claim
from tests.chaos.faults import Harm
from tests.chaos.model import ChaosModel
from tests.chaos.parts import CoordinatorPart, Part, RedisServer, Worker, until
from tests.chaos.shape import Shape
from tests.chaos.volume import Volume
from tests.chaos.ways import Way

AGENT_UID = 54_321
LOOK_S = 0.1
MOST_HITS = 2
"""A session whose box was killed so often without an answer in between is left alone: a start is not tried for ever."""
LEFT_S = 0.5
JUST_S = 0.02
"""An answer that comes this soon after a fault was on its way before it."""


@dataclass(frozen=True)
class BoxSeen:
    """A running box."""

    container: str
    project: str


@dataclass
class Wait:
    """A recovery that has not been seen yet."""

    kind: str
    harm: Harm
    open: set[str]


class ChaosStage:
    """A running cluster under load; use `opened`.

    Args:
        directory: For everything; short, because of sockets.
        seed: Of the model's replies.
        shape: How large it is.
    """

    def __init__(self, directory: Path, seed: int, shape: Shape) -> None:
        self.directory = directory
        self.shape = shape
        self.projects = directory / "projects"
        self.projects.mkdir()
        self.volume = Volume(directory / "sessions")
        self.model = ChaosModel(seed, shape.slow_of_100, shape.steps, shape.think_s, shape.step_calls)
        self.endpoint = ScriptedEndpoint(self.model)
        self.endpoint.requests = type(self.endpoint.requests)(maxlen=1)
        self.redis = RedisServer(directory)
        name = f"chaos-{os.getpid()}"
        # Room for all with as many nodes away as may be, and not for all on fewer.
        places = -(-shape.sessions // max(shape.workers - shape.most_gone, 1))
        workers = [f"{name}-{n}" for n in range(shape.workers)]
        coordinators = [f"coordinator-{n}" for n in range(shape.coordinators)]
        self.ways = {one: Way(self.redis.socket) for one in (workers[0], coordinators[0])}
        """Of one part of each kind: they take the harness' time."""
        urls = {one: way.url for one, way in self.ways.items()}
        self.workers = [Worker(one, directory, urls.get(one, self.redis.url), places) for one in workers]
        self.coordinators = [
            CoordinatorPart(one, directory, urls.get(one, self.redis.url), self.endpoint.base_url, self._told)
            for one in coordinators
        ]
        for coordinator in self.coordinators:
            coordinator.on_start = self._lost
        self.recoveries: dict[str, list[float]] = {}
        """Seconds, by kind of fault."""
        self.on_told: Callable[[str, dict[str, Any]], None] = lambda coordinator, told: None
        """Called with whatever a coordinator tells."""
        self.answers: Counter[str] = Counter()
        self.cut_off: set[str] = set()
        """Sessions whose coordinator said that the volume took nothing more."""
        self.claimed: set[Call] = set()
        """Calls whose claims were left so."""
        self.expiring_keys = 0
        """Keys that were left in Redis to expire, once all had ended."""
        self.faults: list[Done] = []
        """All that were done."""
        self.owners: dict[str, set[str]] = {}
        """The coordinators that a session was with, by its id."""
        self._docker = docker.APIClient(timeout=60)
        self._lock = threading.RLock()
        self._live: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._projects: dict[str, str] = {}
        """By session."""
        self._waits: list[Wait] = []
        self._hits: Counter[str] = Counter()
        self._returns: list[tuple[Worker, frozenset[str], float]] = []
        self._begun = 0
        self._stop = threading.Event()
        self._attending = threading.Thread(target=self._attend, name="attend", daemon=True)
        self._is_loaded = True

    def start(self) -> None:
        """Start all parts and the load."""
        sessions = self.directory / "sessions"
        sessions.mkdir()
        if self.shape.has_volume:
            self.volume.mount()
        self.redis.start()
        for part in (*self.workers, *self.coordinators):
            part.start()
        self._attending.start()
        until(lambda: self.answers["success"] > 0, "the first call is answered")

    # What faults ask.

    @property
    def live(self) -> frozenset[str]:
        """The projects whose session runs."""
        with self._lock:
            return frozenset(self._live)

    def on_node(self, node: str) -> frozenset[str]:
        """Return the projects whose session runs on a node."""
        with self._lock:
            return frozenset(project for project in self._live if self._nodes.get(project) == node)

    def everybody(self) -> Harm:
        """Return harm to all sessions from now on, over with the first answer."""
        with self._lock:
            return Harm(frozenset(self._live), time.monotonic(), is_any=True)

    def any_box(self, rng: random.Random) -> BoxSeen | None:
        """Return the box of a session, to be hurt."""
        boxes = [box for box in self._boxes() if self._hits[box.project] < MOST_HITS]
        if not boxes:
            return None
        box = rng.choice(boxes)
        with self._lock:
            self._hits[box.project] += 1
        return box

    def kill_box(self, box: BoxSeen) -> bool:
        """Kill a container; whether it was there."""
        try:
            self._docker.kill(box.container)
        except APIError:
            return False
        return True

    def pids_of(self, box: BoxSeen, script: str) -> list[int]:
        """Return the processes of a box that run one of the guest's scripts."""
        try:
            rows = self._docker.top(box.container, ps_args="-eo pid,args")["Processes"] or []
        except APIError:
            return []
        return [int(row[0]) for row in rows if f"/{script} " in f"{row[1]} " and "spawner.pyc" not in row[1]]

    def come_back(self, worker: Worker, victims: frozenset[str], latest: float) -> None:
        """Let a worker be started again once its sessions have moved."""
        with self._lock:
            self._returns.append((worker, victims, latest))

    # What the run does.

    def note(self, kind: str, harm: Harm, began: float) -> None:
        """Keep a fault that began so many seconds since the epoch; measure how long its victims take to recover."""
        whom = frozenset() if harm.is_any else harm.victims | harm.on
        self.faults.append(Done(kind, began, time.time(), whom))
        if harm.victims:
            with self._lock:
                self._waits.append(Wait(kind, harm, set(harm.victims)))

    @property
    def is_recovering(self) -> bool:
        """Whether a recovery has not been seen yet, of a session that still runs, or a part that was hurt still starts.

        A coordinator whose neighbour is not there yet is not hurt: its sessions would have nobody to go on with them.
        """
        with self._lock:
            self._waits = [wait for wait in self._waits if wait.open & set(self._live)]
            return bool(self._waits or self._returns or not self.all_serve)

    @property
    def all_serve(self) -> bool:
        """Whether no part is away or still starts."""
        return all(part.serves() for part in (*self.coordinators, *self.workers))

    def finish(self, timeout_s: float) -> list[str]:
        """End the load, then all parts; return what is left over or did not end."""
        wrong = self._without_claim()
        self._is_loaded = False
        self.model.is_over = True
        try:
            until(lambda: not self._running(), "all sessions end", timeout_s)
        except TimeoutError as exc:
            wrong.append(f"{exc}: {self._running()}")
        # Who was hurt last may still be starting, and ends in order only once it has started.
        try:
            until(lambda: self.all_serve, "all parts serve")
        except TimeoutError as exc:
            wrong.append(str(exc))
        self._stop.set()
        orderly: Sequence[Sequence[Part]] = (self.coordinators, self.workers)
        for parts in orderly:
            with ThreadPoolExecutor(len(parts)) as threads:
                codes = list(threads.map(Part.end, parts))
            wrong += [f"{part.name} ended with {code}" for part, code in zip(parts, codes, strict=True) if code != 0]
        with self.redis.client() as client:
            ttls = {key.decode(): client.ttl(key) for key in list(client.scan_iter())}
            self.claimed = claimed(client)
        self.expiring_keys = sum(ttl >= 0 for ttl in ttls.values())
        wrong += [f"left in Redis: {name}" for name in redis_leftovers(ttls, [one.name for one in self.workers])]
        for worker in self.workers:
            left = self._containers(worker.name, every=True)
            wrong += [f"left container: {one['Id'][:12]} of {worker.name}" for one in left]
            for record in (self.directory / "nodes" / worker.name).rglob("*"):
                if record.is_file() and "records" in record.parts and record.suffix == ".json":
                    wrong.append(f"left record: {record}")
        return wrong

    def close(self) -> None:
        """End by force what still runs, and remove everything."""
        self._stop.set()
        if self._attending.is_alive():
            # It would start again what is ended here.
            self._attending.join()
        for part in (*self.coordinators, *self.workers, self.redis):
            part.may_run = False
            if part.is_alive:
                part.kill()
        for way in self.ways.values():
            way.close()
        # The engine may still be making what a worker had asked for.
        for _ in range(2):
            for worker in self.workers:
                for one in self._containers(worker.name, every=True):
                    with contextlib.suppress(APIError):
                        self._docker.remove_container(one["Id"], force=True)
            time.sleep(LEFT_S)
        self.endpoint.close()
        self._docker.close()
        self.volume.close()

    def _without_claim(self) -> list[str]:
        if any(fault.kind == "redis_lost_its_last" for fault in self.faults):
            return []
        with self.redis.client() as client:
            return without_claim(self.directory / "sessions", client)

    def _running(self) -> list[str]:
        with self._lock:
            return sorted(self._live)

    def _attend(self) -> None:
        """Restart what died and keep the load up."""
        while not self._stop.wait(LOOK_S):
            for part in (*self.workers, *self.coordinators):
                part.look_after()
            self._notice_ended()
            with self._lock:
                self._let_return()
                missing = self.shape.sessions - len(self._live) if self._is_loaded else 0
            for _ in range(missing):
                self._begin()

    def _notice_ended(self) -> None:
        """Forget sessions that ended when their coordinator was killed right before it could tell so."""
        with self._lock:
            untold = [
                (project, session)
                for session, project in self._projects.items()
                if (owner := self._live.get(project)) and not self._has(owner, project)
            ]
        for project, session in untold:
            if has_ended(self.directory / "sessions" / session):
                with self._lock:
                    self._over(project)

    def _has(self, coordinator: str, project: str) -> bool:
        return any(project in one.projects for one in self.coordinators if one.name == coordinator)

    def _let_return(self) -> None:
        waiting = {project for wait in self._waits if wait.kind == "node_gone" for project in wait.open}
        for entry in list(self._returns):
            worker, victims, latest = entry
            if not (victims & waiting & set(self._live)) or time.monotonic() > latest or not self._is_loaded:
                worker.may_run = True
                self._returns.remove(entry)

    def _begin(self) -> None:
        self._begun += 1
        coordinator = self.coordinators[self._begun % len(self.coordinators)]
        project = self.projects / f"p{self._begun}"
        project.mkdir()
        if os.geteuid() == 0:
            os.chown(project, AGENT_UID, AGENT_UID)
        with self._lock:
            self._live[project.name] = ""
        # Its coordinator may die before it has begun: nobody waits for it then.
        coordinator.projects.add(project.name)
        if not coordinator.tell("run", str(project)):
            self._over(project.name)

    def _over(self, project: str) -> None:
        with self._lock:
            self._live.pop(project, None)
            self._nodes.pop(project, None)
            self._projects = {session: one for session, one in self._projects.items() if one != project}

    def _lost(self, coordinator: CoordinatorPart) -> None:
        """Forget sessions that a coordinator was told of and had not begun when it died."""
        with self._lock:
            for project in coordinator.projects:
                if self._live.get(project) == "":
                    self._over(project)

    def _told(self, coordinator: str, told: dict[str, Any]) -> None:
        project = told.get("project", "")
        if told.get("reason", "").startswith("storage"):
            self.cut_off.add(told["session"])
        self.on_told(coordinator, told)
        with self._lock:
            match told["what"]:
                case "began":
                    self._live[project] = coordinator
                    self._projects[told["session"]] = project
                    self.owners.setdefault(told["session"], set()).add(coordinator)
                case "placed":
                    self._nodes[project] = told["node"]
                case "call":
                    self.answers[told["status"]] += 1
                    if told["status"] == "success":
                        self._answered(project, told["at"])
                case "ended" if self._live.get(project) in ("", coordinator):
                    # Not the word of a coordinator that had lost it.
                    self._over(project)

    def _answered(self, project: str, at: float) -> None:
        self._hits.pop(project, None)
        for wait in self._waits:
            if project in wait.open and at > wait.harm.at + JUST_S:
                self.recoveries.setdefault(wait.kind, []).append(at - wait.harm.at)
                wait.open.discard(project)
                if wait.harm.is_any:
                    wait.open.clear()

    def _containers(self, node: str, *, every: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._docker.containers(all=every, filters={"label": f"sandhog.node={node}"})
        return found

    def _boxes(self) -> list[BoxSeen]:
        found = []
        for worker in self.workers:
            for one in self._containers(worker.name):
                sources = [Path(mount.get("Source", "")) for mount in one.get("Mounts", ())]
                projects = {path.name for path in sources if path.parent == self.projects}
                projects |= {project for path in sources if (project := self._projects.get(path.parent.name))}
                found += [BoxSeen(one["Id"], project) for project in projects]
        return sorted(found, key=lambda box: box.project)


@contextlib.contextmanager
def opened(seed: int, shape: Shape) -> Iterator[ChaosStage]:
    """Yield a started stage; nothing of it is left afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    directory.chmod(0o755)
    stage = ChaosStage(directory, seed, shape)
    try:
        stage.start()
        yield stage
    finally:
        # A second Ctrl-C must not leave half of it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            stage.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            signal.signal(signal.SIGINT, before)
