"""`python -m tests.chaos --seed N --faults M --calls K --minutes T`: chaos by hand, and its results as a document."""

import argparse
import json
import random
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.checker import summary
from tests.chaos.faults import KINDS
from tests.chaos.model import SLOW_OF_100, STEP_CALLS
from tests.chaos.run import BETWEEN_S, Plan, Report, perform
from tests.chaos.shape import Shape

MOST_UNKNOWN = 0.05
"""A run of a thousand faults among a hundred thousand calls has about 3 %."""


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def as_json(report: Report) -> str:
    """Return a run's counts and recoveries on one line."""
    recoveries = {
        kind: {"n": len(times), "p50_s": round(statistics.median(times), 2), "p95_s": round(p95(times), 2)}
        for kind, times in sorted(report.recoveries.items())
    }
    plan = report.plan
    fields = {"seed": plan.seed, "calm": plan.calm, "seconds": round(report.seconds), "kept": report.kept}
    return json.dumps({**fields, "faults": dict(report.injected), **summary(report.verdict), "recoveries": recoveries})


def planned(argv: Sequence[str] | None = None) -> tuple[Plan, Path | None]:
    """Return the plan that a command line asks for, and where its result goes to."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument(
        "--calls", type=int, default=0, help="go on until so many were asked for; the faults are spread over them"
    )
    parser.add_argument("--step-calls", type=int, default=STEP_CALLS, help="calls of a reply; beyond four, half read")
    parser.add_argument("--slow", type=int, default=SLOW_OF_100, help="so many of a hundred commands sleep")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="the faults, with commas between them")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--coordinators", type=int, default=2)
    parser.add_argument("--between", type=float, default=BETWEEN_S, help="longest pause behind a fault, in seconds")
    parser.add_argument(
        "--most-unknown", type=float, default=MOST_UNKNOWN, help="largest share of the calls that may have run"
    )
    parser.add_argument("--calm", action="store_true", help="wait for each recovery, to measure it alone")
    parser.add_argument("--keep", action="store_true", help="keep the directory where something was wrong")
    parser.add_argument("--out", type=Path, help="append the result to this file, a JSON object a line")
    given = parser.parse_args(argv)
    kinds = given.kinds.split(",")
    unknown = set(kinds) - set(KINDS)
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    shape = Shape(
        given.sessions,
        given.workers,
        given.coordinators,
        has_volume="disk_full" in kinds,
        slow_of_100=given.slow,
        step_calls=given.step_calls,
    )
    plan = Plan(
        given.seed,
        given.faults,
        given.calls,
        given.minutes,
        kinds,
        shape,
        given.between,
        most_unknown=given.most_unknown,
        calm=given.calm,
        keep=given.keep,
    )
    return plan, given.out


def main() -> int:
    """Run, print, and say by the exit code whether all held."""
    plan, out = planned()
    # So that what was started is ended, too; a shell's background job ignores the second one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"seed {plan.seed}", file=sys.stderr, flush=True)
    report = perform(plan, lambda words: print(words, file=sys.stderr, flush=True))
    line = as_json(report)
    print(line)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")
    return 1 if report.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
