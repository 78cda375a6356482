"""Two batches side by side: results → **compare** → table, JSON."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coordinator.batch.lines import ResultLine
from coordinator.batch.summary import Summary


@dataclass
class TaskSide:
    """What one batch says of one task, all its runs together."""

    runs: int = 0
    solved: int = 0
    cost_usd: float = 0.0
    steps: int = 0
    broken: int = 0

    def add(self, line: ResultLine) -> None:
        """Count one more run."""
        self.runs += 1
        self.cost_usd += line.cost or 0.0
        self.steps += line.steps
        self.broken += line.error is not None
        self.solved += line.is_solved

    @property
    def rate(self) -> float | None:
        """Share of the runs that solved it, without those that something around them broke; None without any."""
        judged = self.runs - self.broken
        return self.solved / judged if judged else None


@dataclass
class Comparison:
    """Two batches, task by task and in all."""

    tasks: dict[str, tuple[TaskSide, TaskSide]] = field(default_factory=lambda: defaultdict(_sides))
    totals: tuple[Summary, Summary] = field(default_factory=lambda: (Summary(), Summary()))

    @classmethod
    def of(cls, first: Iterable[ResultLine], second: Iterable[ResultLine]) -> "Comparison":
        """Return the comparison of two results."""
        comparison = cls()
        for side, lines in enumerate((first, second)):
            for line in lines:
                comparison.tasks[line.id][side].add(line)
                comparison.totals[side].add(line)
        return comparison

    def changed(self) -> list[tuple[str, TaskSide, TaskSide]]:
        """Return the tasks of both that one of them solves more often, by name."""
        both = [(task, one, other) for task, (one, other) in self.tasks.items() if one.runs and other.runs]
        return sorted((found for found in both if found[1].rate != found[2].rate), key=lambda found: found[0])

    def only_in(self, side: int) -> list[str]:
        """Return the tasks that only one of the batches has, by name."""
        return sorted(task for task, sides in self.tasks.items() if sides[side].runs and not sides[1 - side].runs)

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "totals": [total.as_json() for total in self.totals],
            "changed": [
                {"id": task, "solved": [one.rate, other.rate], "steps": [one.steps, other.steps]}
                for task, one, other in self.changed()
            ],
            "only_in": [self.only_in(0), self.only_in(1)],
        }


def _sides() -> tuple[TaskSide, TaskSide]:
    return TaskSide(), TaskSide()
