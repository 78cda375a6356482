"""The faults of the chaos suite: one function a kind, and what each has hurt."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import redis

from tests.chaos.links import shut_link
from tests.chaos.parts import Part
from worker.contract import keys

if TYPE_CHECKING:
    from tests.chaos.stage import ChaosStage

_P = TypeVar("_P", bound=Part)
LEAST_PAUSE_S = 0.3
LONG_PAUSE_S = 8.0
"""Longer than a coordinator's lease."""
AWAY_S = (5.5, 8.0)
"""Longer than a client of Redis waits for an answer."""
CUT_S = (1.0, 6.5)
QUEUE_S = 1.0
DISK_FULL_S = 0.5
GONE_S = 150.0


@dataclass(frozen=True)
class Harm:
    """What a fault did."""

    victims: frozenset[str] = frozenset()
    """Projects whose next answer shows that they have recovered."""
    at: float = 0.0
    """Monotonic time from which recovery counts."""
    is_any: bool = False
    """The first answer of any victim is the recovery; else each has its own."""
    on: frozenset[str] = frozenset()
    """Names of parts, and projects, that it was done to beside the victims; none of both: to everybody."""


Fault = Callable[["ChaosStage", random.Random], Harm | None]
"""Does harm; None where there was nothing to hurt."""


def worker_killed(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGKILL of a worker; the harness starts it again."""
    return _end_worker(stage, rng, signal.SIGKILL)


def worker_handed_over(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGHUP to a worker: its boxes are kept for its next life."""
    return _end_worker(stage, rng, signal.SIGHUP)


def _end_worker(stage: "ChaosStage", rng: random.Random, number: int) -> Harm | None:
    worker = _living(stage.workers, rng)
    if worker is None:
        return None
    victims, at = stage.on_node(worker.name), time.monotonic()
    worker.signal(number)
    return Harm(victims, at, on=frozenset([worker.name]))


def worker_paused(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGSTOP of a worker for a while."""
    return _pause(_living(stage.workers, rng), rng, stage.shape.most_pause_s)


def node_gone(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """A worker that is killed and comes back only after its sessions have moved."""
    if sum(not worker.may_run for worker in stage.workers) >= stage.shape.most_gone:
        return None
    worker = _living(stage.workers, rng)
    if worker is None or not stage.on_node(worker.name):
        return None
    victims, at = stage.on_node(worker.name), time.monotonic()
    worker.may_run = False
    worker.signal(signal.SIGKILL)
    stage.come_back(worker, victims, at + GONE_S)
    return Harm(victims, at, on=frozenset([worker.name]))


def coordinator_killed(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGKILL of a coordinator; another goes on with its sessions, and the harness starts it again."""
    coordinator = _living(stage.coordinators, rng)
    if coordinator is None:
        return None
    victims, at = frozenset(coordinator.projects), time.monotonic()
    coordinator.kill()
    return Harm(victims, at, on=frozenset([coordinator.name]))


def coordinator_ended(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGTERM of a coordinator: it drains for a moment and leaves the rest to another; started again once it ended."""
    return _drain(stage.coordinators, rng)


def worker_ended(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGTERM of a worker: it takes nothing more, its calls end, its boxes too; started again once it ended."""
    return _drain(stage.workers, rng)


def _drain(parts: Sequence[Part], rng: random.Random) -> Harm | None:
    serving = [part for part in parts if part.serves()]
    if not serving:
        return None
    part = rng.choice(serving)
    part.drain()
    return Harm(on=frozenset([part.name]))


def coordinator_paused(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGSTOP of a coordinator, now and then longer than its lease: others go on, and it is fenced."""
    coordinator = _living(stage.coordinators, rng)
    most_s = LONG_PAUSE_S if rng.random() < 0.4 else stage.shape.most_pause_s
    return _pause(coordinator, rng, most_s)


def redis_paused(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGSTOP of Redis for a while."""
    return _pause_redis(stage, rng.uniform(LEAST_PAUSE_S, stage.shape.most_pause_s))


def redis_away(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGSTOP of Redis, or SIGKILL and a late start, for longer than its clients wait for an answer."""
    away_s = rng.uniform(*AWAY_S)
    if rng.random() < 0.5:
        return _pause_redis(stage, away_s)
    return _restart_redis(stage, 0, away_s)


def _pause_redis(stage: "ChaosStage", pause_s: float) -> Harm:
    stage.redis.signal(signal.SIGSTOP)
    time.sleep(pause_s)
    stage.redis.signal(signal.SIGCONT)
    return stage.everybody()


def redis_restarted(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """SIGKILL of Redis, started again on its append-only file."""
    return _restart_redis(stage, 0, rng.uniform(0, 1.0))


def redis_lost_its_last(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The same, and the end of the file was lost: claims, leases, messages."""
    return _restart_redis(stage, rng.randint(1, 6_000), rng.uniform(0, 1.0))


def _restart_redis(stage: "ChaosStage", lost_bytes: int, away_s: float) -> Harm:
    stage.redis.kill()
    time.sleep(away_s)
    if lost_bytes:
        stage.redis.lose_tail(lost_bytes)
    stage.redis.start()
    return stage.everybody()


def connections_cut(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """Every connection to Redis is closed."""
    with stage.redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    return stage.everybody()


def way_cut(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """What Redis answers to a part gets lost for a while, or what it is told by it; the other direction goes on."""
    name = rng.choice(sorted(stage.ways))
    stage.ways[name].cut(answers=rng.random() < 0.5)
    time.sleep(rng.uniform(*CUT_S))
    stage.ways[name].heal()
    return Harm(on=frozenset([name]))


def box_killed(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """`docker kill` of a session's box."""
    box = stage.any_box(rng)
    if box is None:
        return None
    at = time.monotonic()
    return Harm(frozenset([box.project]), at) if stage.kill_box(box) else None


def guest_killed(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The guest inside a box is killed."""
    return _kill_inside(stage, rng, "guest.pyc")


def link_broken(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The link of a box is shut, or the relay that carries it killed."""
    box = stage.any_box(rng)
    at = time.monotonic()
    if box is not None and any(shut_link(pid) for pid in stage.pids_of(box, "guest.pyc")):
        return Harm(frozenset([box.project]), at)
    return _kill_inside(stage, rng, "relay.pyc")


def _kill_inside(stage: "ChaosStage", rng: random.Random, script: str) -> Harm | None:
    box = stage.any_box(rng)
    pids = stage.pids_of(box, script) if box else []
    if box is None or not pids:
        return None
    at = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
    return Harm(frozenset([box.project]), at)


def message_twice(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """What waits for a worker is delivered twice."""
    return _meddle(stage, rng, lambda client, queue: [client.lpush(queue, one) for one in client.lrange(queue, 0, -1)])


def message_lost(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """A message that waits for a worker is lost."""
    return _meddle(stage, rng, lambda client, queue: client.rpop(queue))


def _meddle(stage: "ChaosStage", rng: random.Random, act: Callable[[redis.Redis, str], object]) -> Harm | None:
    worker = _living(stage.workers, rng)
    if worker is None:
        return None
    queue = keys.queue(worker.name)
    worker.signal(signal.SIGSTOP)
    try:
        with stage.redis.client() as client:
            deadline = time.monotonic() + QUEUE_S
            while not client.llen(queue) and time.monotonic() < deadline:
                time.sleep(0.01)
            if not client.llen(queue):
                return None
            act(client, queue)
    finally:
        worker.signal(signal.SIGCONT)
    return Harm(on=frozenset([worker.name]))


def endpoint_failing(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The next requests to the model get 429, 5xx, garbage or half a reply."""
    stage.model.fail(rng.randint(1, 4), rng)
    return Harm()


def session_cancelled(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """A session is cancelled."""
    running = sorted(stage.everybody().victims)
    if not running:
        return None
    project = rng.choice(running)
    for coordinator in stage.coordinators:
        coordinator.tell("cancel", project)
    return Harm(on=frozenset([project]))


def command_out_of_memory(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The next command takes more memory than its box has."""
    return _harm_command(stage, "command_out_of_memory")


def command_timed_out(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The next command does not end within its time."""
    return _harm_command(stage, "command_timed_out")


def command_flooding(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The next command prints far more than an answer may have."""
    return _harm_command(stage, "command_flooding")


def _harm_command(stage: "ChaosStage", kind: str) -> Harm:
    stage.model.harm(kind)
    return Harm()


def disk_full(stage: "ChaosStage", rng: random.Random) -> Harm | None:
    """The shared volume takes nothing more for a moment."""
    used = stage.volume.used_bytes()
    if used is None:
        return None
    if not stage.volume.resize(max(used, 1)):
        return None
    time.sleep(DISK_FULL_S)
    stage.volume.resize()
    return Harm()


KINDS: Mapping[str, Fault] = {
    one.__name__: one
    for one in (
        worker_killed,
        worker_handed_over,
        worker_paused,
        worker_ended,
        coordinator_killed,
        coordinator_paused,
        coordinator_ended,
        redis_paused,
        redis_away,
        redis_restarted,
        redis_lost_its_last,
        connections_cut,
        way_cut,
        box_killed,
        guest_killed,
        link_broken,
        message_twice,
        message_lost,
        endpoint_failing,
        session_cancelled,
        command_out_of_memory,
        command_timed_out,
        command_flooding,
        disk_full,
        node_gone,
    )
}
WEIGHTS = {"node_gone": 3.0, "redis_lost_its_last": 0.6, "coordinator_killed": 0.7, "coordinator_paused": 0.7}
"""How often a kind comes, beside 1 for the others: those that cost much time are rarer.

A node that is to go stays where as many are gone as may be, which most of these times are met by.
"""
SHORT = (
    "box_killed",
    "guest_killed",
    "link_broken",
    "worker_killed",
    "coordinator_killed",
    "redis_paused",
    "redis_restarted",
    "connections_cut",
    "message_twice",
    "session_cancelled",
    "endpoint_failing",
    "coordinator_ended",
    "command_timed_out",
    "command_flooding",
)
"""What the short run has: nothing that takes long, or needs a file system of its own."""


def _living(parts: list[_P], rng: random.Random) -> _P | None:
    living = [part for part in parts if part.is_alive]
    return rng.choice(living) if living else None


def _pause(part: Part | None, rng: random.Random, most_s: float) -> Harm | None:
    if part is None:
        return None
    part.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(LEAST_PAUSE_S, most_s))
    part.signal(signal.SIGCONT)
    return Harm(on=frozenset([part.name]))
