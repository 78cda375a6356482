"""One chaos run: a stage under load, faults by a seed, and the checker's verdict."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from tests.chaos.checker import Known, Verdict, check_sessions
from tests.chaos.faults import KINDS, WEIGHTS
from tests.chaos.shape import Shape
from tests.chaos.stage import opened

BETWEEN_S = 0.9
PATIENCE_S = 4.0
DUE_S = 6.0
"""A fault comes after so long also where the calls before it have not been asked for."""
CALM_S = 120.0
"""With `calm`, how long a fault's recovery is waited for before the next."""
FINISH_S = 300.0
LEAST_OFTEN = 20
"""Of a thousand faults so many are of each kind."""
MOST_MISSES = 100
"""So often in a row a fault that found nothing to hurt is put off to a later place; one may be impossible here."""


@dataclass(frozen=True)
class Plan:
    """What a run is to do; the seed decides kinds, order and sizes of its faults."""

    seed: int
    faults: int
    calls: int = 0
    """Go on until so many calls were asked for; the faults are spread over them."""
    minutes: float = 60.0
    """End then in any case."""
    kinds: Sequence[str] = tuple(KINDS)
    shape: Shape = Shape()  # noqa: RUF009 - frozen
    between_s: float = BETWEEN_S
    """The longest pause behind a fault."""
    _: KW_ONLY
    answers_between: int = 0
    """So many calls succeed behind a fault before the next, or `PATIENCE_S` pass: else there is nothing to hurt."""
    most_unknown: float = 1.0
    """The largest share of the calls that may have run."""
    calm: bool = False
    """Wait for the recovery from each fault, to measure it."""
    keep: bool = False
    """Keep a copy of the directory where something was wrong."""


@dataclass
class Report:
    """What a run came to."""

    plan: Plan
    injected: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    kept: str = ""


def schedule(plan: Plan) -> "list[str]":
    """Return the kinds of a plan's faults in order: each once, then often enough; chance decides the rest."""
    rng = random.Random(plan.seed)
    kinds = list(plan.kinds)
    first = rng.sample(kinds, len(kinds))
    often = kinds * min(LEAST_OFTEN * plan.faults // 1000, plan.faults // len(kinds) - 1)
    weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
    more = [*often, *rng.choices(kinds, weights, k=max(0, plan.faults - len(first) - len(often)))]
    rng.shuffle(more)
    return [*first, *more]


def perform(plan: Plan, say: Callable[[str], None] = lambda words: None) -> Report:
    """Run a plan to its end and check it."""
    report = Report(plan)
    began = time.monotonic()
    deadline = began + plan.minutes * 60
    with opened(plan.seed, plan.shape) as stage:
        rng = random.Random(plan.seed + 1)
        kinds, misses, patient_until = schedule(plan), Counter[str](), 0.0
        while time.monotonic() < deadline and (report.injected.total() < plan.faults or stage.model.calls < plan.calls):
            done = report.injected.total()
            is_early = stage.model.calls < _due(plan, done) and time.monotonic() < patient_until
            if done >= plan.faults or is_early:
                time.sleep(0.05)
                continue
            kind, fault_began = kinds.pop(0) if kinds else rng.choice(plan.kinds), time.time()
            harm = KINDS[kind](stage, random.Random(rng.random()))
            if harm is None and misses[kind] < MOST_MISSES:
                misses[kind] += 1
                kinds.insert(rng.randint(0, len(kinds)), kind)
            elif harm is not None:
                misses[kind] = 0
                report.injected[kind] += 1
                stage.note(kind, harm, fault_began)
                say(
                    f"{time.monotonic() - began:7.1f} s  {report.injected.total():4}  {kind}  {stage.model.calls} calls"
                )
                patient_until = time.monotonic() + DUE_S
            time.sleep(rng.uniform(0, plan.between_s))
            enough, patience = stage.answers["success"] + plan.answers_between, time.monotonic() + PATIENCE_S
            while stage.answers["success"] < enough and time.monotonic() < patience:
                time.sleep(0.02)
            settled = time.monotonic() + CALM_S
            while plan.calm and stage.is_recovering and time.monotonic() < min(settled, deadline):
                time.sleep(0.02)
        leftovers = stage.finish(FINISH_S)
        known = Known(stage.projects, stage.cut_off, stage.faults, stage.owners, stage.claimed)
        report.verdict = check_sessions(stage.directory, known)
        report.verdict.demand_few_unknown(plan.most_unknown)
        report.verdict.violations += leftovers
        report.recoveries = stage.recoveries
        report.seconds = time.monotonic() - began
        if plan.keep and report.verdict.violations:
            report.kept = str(kept(stage.directory))
    return report


def _due(plan: Plan, faults: int) -> float:
    """Return how many calls are asked for before the next fault, so that faults and calls end together."""
    return plan.calls * faults / max(plan.faults, 1)


def kept(directory: Path) -> Path:
    """Copy a run's directory to where no volume is mounted over it."""
    return Path(shutil.copytree(directory, f"{directory}-kept", ignore=shutil.ignore_patterns("s", "guest")))
