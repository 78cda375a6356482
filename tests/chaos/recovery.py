"""`python -m tests.chaos.recovery --times 10`: how long each recovery takes on a calm cluster, and its stages; by hand.

One fault at a time, and the next only once every session has answered again and nobody waits for anything any more.
Times count from the fault. Sessions think for a moment before each step, so that the machine is not full.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import docker

from tests.chaos.faults import KINDS, Harm
from tests.chaos.parts import until
from tests.chaos.run import kept
from tests.chaos.shape import Shape
from tests.chaos.stage import JUST_S, ChaosStage, opened
from worker.contract import keys

SHAPE = Shape(sessions=3, workers=2, coordinators=2, slow_of_100=0, steps=(60, 90), think_s=0.3)
CALM_S = 5.0
QUIET_S = 15.0
"""After Redis was away, nobody is suspected for so long."""
RECOVERED_S = 180.0
LOOK_S = 0.01
GOALS_S = {"box_killed": 1, "worker_killed": 5, "coordinator_killed": 8, "redis_restarted": 3, "node_gone": 75}
ANSWER = "next answer"
BOX_ENDED = "box has ended"
STAGES: Mapping[str, Sequence[str]] = {
    "box_killed": ("call says so", "box starts"),
    "worker_killed": ("node has its lease",),
    "coordinator_killed": ("lease is over", "taken over", "box is there", "model replied"),
    "redis_restarted": ("model replied",),
    "node_gone": ("lease is over", "box is there", "model replied"),
}
"""What happens between a fault and the next answer, by kind."""


@dataclass(frozen=True)
class Mark:
    """Something that was seen."""

    at: float
    what: str
    project: str = ""
    """"" for what concerns all."""


class Probe:
    """Notes what happens on a stage."""

    def __init__(self, stage: ChaosStage) -> None:
        self.marks: list[Mark] = []
        self._stage = stage
        self._leases: dict[str, bytes | None] = {}
        self._ended = threading.Event()
        self._docker = docker.APIClient(timeout=600)
        self._events = self._docker.events(decode=True, filters={"event": ["die", "start"], "type": "container"})
        stage.on_told = self._told
        for target in (self._watch_leases, self._watch_boxes):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        with contextlib.suppress(Exception):
            self._events.close()
        self._docker.close()

    def last(self, what: str, project: str) -> float:
        """Return when something was seen last; 0 where it was not."""
        return next((mark.at for mark in reversed(self.marks) if (mark.what, mark.project) == (what, project)), 0.0)

    def first(self, what: str, project: str, since: float) -> float | None:
        """Return when something was first seen behind a moment."""
        times = [mark.at for mark in self.marks if mark.at > since and mark.what == what]
        own = [mark.at for mark in self.marks if mark.at > since and (mark.what, mark.project) == (what, project)]
        return min(own or times, default=None)

    def _told(self, coordinator: str, told: dict[str, Any]) -> None:
        match told:
            case {"what": "call", "status": "success"}:
                what = ANSWER
            case {"what": "call"}:
                what = "call says so"
            case {"what": known}:
                what = {"began": "taken over", "placed": "box is there", "replied": "model replied"}.get(known, known)
        self.marks.append(Mark(told["at"], what, told.get("project", "")))

    def _watch_leases(self) -> None:
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(Exception), self._stage.redis.client() as client:
                self._look(client)

    def _look(self, client: Any) -> None:
        while not self._ended.wait(LOOK_S):
            names = [*client.scan_iter(f"{keys.PREFIX}lease:*"), *client.scan_iter(f"{keys.coordinator_lease('')}*")]
            found = dict(zip((name.decode() for name in names), client.mget(names) if names else (), strict=True))
            now = time.monotonic()
            for name in self._leases.keys() | found.keys():
                before, after = self._leases.get(name), found.get(name)
                if before is not None and after is None:
                    self.marks.append(Mark(now, "lease is over"))
                elif before != after:
                    self.marks.append(Mark(now, "node has its lease" if ":lease:" in name else "ready"))
            self._leases = found

    def _watch_boxes(self) -> None:
        offset = time.time() - time.monotonic()
        with contextlib.suppress(Exception):
            for event in self._events:
                what = {"die": BOX_ENDED, "start": "box starts"}.get(event["Action"])
                if what is not None:
                    self.marks.append(Mark(event["timeNano"] / 1e9 - offset, what))


def calm_down(stage: ChaosStage, probe: Probe, calm_s: float) -> None:
    """Wait until all parts serve and all sessions have answered, for a while."""
    until(lambda: stage.all_serve, "all parts serve")
    time.sleep(calm_s)
    began = time.monotonic()

    def late() -> list[str]:
        return [one for one in stage.live if probe.last(ANSWER, one) < began]

    try:
        until(lambda: len(stage.live) == stage.shape.sessions and not late(), "all sessions go on")
    except TimeoutError:
        print(f"of {sorted(stage.live)} these do not go on: {late()}; {kept(stage.directory)}", file=sys.stderr)
        raise


def harmed(stage: ChaosStage, kind: str, rng: random.Random) -> Harm:
    """Do a fault that hurts some session."""
    harm = None
    while True:
        if kind != "coordinator_killed":
            harm = KINDS[kind](stage, rng)
        elif busy := [one for one in stage.coordinators if one.projects]:
            # One that has no session would be away while the next one is hurt.
            coordinator = rng.choice(busy)
            harm = Harm(frozenset(coordinator.projects), time.monotonic())
            coordinator.kill()
        if harm is not None and harm.victims:
            return harm
        time.sleep(0.1)


def measured(stage: ChaosStage, probe: Probe, kind: str, rng: random.Random) -> list[dict[str, float]]:
    """Do one fault; return the stages of each session's recovery, in seconds."""
    harm = harmed(stage, kind, rng)
    if kind == "box_killed":
        # The engine takes its time to kill it.
        until(lambda: probe.first(BOX_ENDED, "", harm.at) is not None, "the box has ended")
        harm = Harm(harm.victims, probe.first(BOX_ENDED, "", harm.at) or harm.at)
    since, victims = harm.at + (0.0 if kind == "box_killed" else JUST_S), set(harm.victims)
    stage.note(kind, harm, time.time())
    found = []
    deadline = time.monotonic() + RECOVERED_S
    while victims and time.monotonic() < deadline:
        time.sleep(0.02)
        for project in list(victims):
            if project not in stage.live:
                victims.discard(project)
            elif (at := probe.first(ANSWER, project, since)) is not None and probe.last(ANSWER, project) > since:
                victims.discard(project)
                times = {what: probe.first(what, project, since) for what in STAGES[kind]}
                found.append({**{what: t - harm.at for what, t in times.items() if t}, ANSWER: at - harm.at})
    found += [{ANSWER: RECOVERED_S} for _ in victims]
    return found


def table(kind: str, found: Sequence[Mapping[str, float]]) -> str:
    """Return the stages of a kind's recoveries, a line each."""
    times = defaultdict(list)
    for one in found:
        for what, seconds in one.items():
            times[what].append(seconds)
    lines = [f"{kind}: goal {GOALS_S[kind]} s, {len(found)} recoveries"]
    for what in (*STAGES[kind], ANSWER):
        if values := sorted(times[what]):
            p95 = values[min(len(values) - 1, int(len(values) * 0.95))]
            middle = statistics.median(values)
            lines.append(f"  {what:20} n {len(values):3}  median {middle:6.2f}  p95 {p95:6.2f}  max {values[-1]:6.2f}")
    return "\n".join(lines)


@contextlib.contextmanager
def probed(stage: ChaosStage) -> Iterator[Probe]:
    """Yield a probe of a stage."""
    probe = Probe(stage)
    try:
        yield probe
    finally:
        probe.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.recovery", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="how many faults of each kind")
    parser.add_argument("--kinds", default=",".join(STAGES), help=f"with commas between them: {', '.join(STAGES)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    parser.add_argument("--raw", action="store_true", help="print each recovery as JSON, too")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with opened(given.seed, SHAPE) as stage, probed(stage) as probe:
        for kind in given.kinds.split(","):
            found = []
            for _ in range(given.times):
                calm_down(stage, probe, QUIET_S if kind == "redis_restarted" else CALM_S)
                probe.marks.clear()
                one = measured(stage, probe, kind, rng)
                found += one
                if given.raw:
                    print(json.dumps({kind: one}), flush=True)
            print(table(kind, found), flush=True)
            if kind == "redis_restarted":
                time.sleep(QUIET_S)
        left = stage.finish(RECOVERED_S)
        if given.keep:
            print(kept(stage.directory), file=sys.stderr)
    print("\n".join(left), file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
