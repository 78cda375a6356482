"""What a batch came to: lines → **summary** → table, JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import comb
from typing import Any

from coordinator.batch.lines import ResultLine


@dataclass
class Summary:
    """Counts over the lines of a batch."""

    runs: int = 0
    status: Counter[str] = field(default_factory=Counter)
    """Of the runs whose outcome is the task's own."""
    broken: int = 0
    """Runs that something around them broke."""
    checked: int = 0
    passed: int = 0
    rewards: list[float] = field(default_factory=list)
    steps: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    knows_cost: bool = True
    seconds: float = 0.0
    by_task: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Task → runs with a check, and how many of them passed."""

    @classmethod
    def of(cls, lines: Iterable[ResultLine]) -> "Summary":
        """Return the counts."""
        summary = cls()
        for line in lines:
            summary.add(line)
        return summary

    def add(self, line: ResultLine) -> None:
        """Count one more line."""
        self.runs += 1
        self.steps += line.steps
        self.calls += line.calls
        self.tokens_in += line.usage.prompt_tokens
        self.tokens_out += line.usage.completion_tokens
        self.seconds += line.seconds
        self.cost_usd += line.cost or 0.0
        self.knows_cost = self.knows_cost and (line.cost is not None or line.steps == 0)
        if line.error is not None:
            self.broken += 1
            return
        self.status[line.status] += 1
        if line.check is None:
            return
        self.checked += 1
        self.passed += line.check.passed
        if line.check.reward is not None:
            self.rewards.append(line.check.reward)
        runs, passed = self.by_task.get(line.id, (0, 0))
        self.by_task[line.id] = (runs + 1, passed + line.check.passed)

    @property
    def completed(self) -> int:
        """Runs that came to their end."""
        return self.status["completed"]

    @property
    def pass_rate(self) -> float | None:
        """Share of the checks that passed; None where none was run."""
        return self.passed / self.checked if self.checked else None

    @property
    def mean_reward(self) -> float | None:
        """None where no check gave one."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def pass_at(self, k: int) -> float | None:
        """Return the chance that one of k runs of a task passes, as the mean over tasks with k runs or more.

        Source: the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code", 2021.
        """
        chances = [1 - comb(runs - passed, k) / comb(runs, k) for runs, passed in self.by_task.values() if runs >= k]
        return sum(chances) / len(chances) if chances else None

    @property
    def most_runs(self) -> int:
        """Checked runs of the task that has most of them."""
        return max((runs for runs, _ in self.by_task.values()), default=0)

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "runs": self.runs,
            "completed": self.completed,
            "stopped": self.status["stopped"],
            "failed": self.status["failed"],
            "infrastructure_errors": self.broken,
            "infrastructure_error_rate": self.broken / self.runs if self.runs else None,
            "checked": self.checked,
            "passed": self.passed,
            "pass_rate": self.pass_rate,
            "pass_at": {str(k): self.pass_at(k) for k in sorted({1, self.most_runs}) if self.most_runs},
            "mean_reward": self.mean_reward,
            "steps": self.steps,
            "calls": self.calls,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "cost_usd": self.cost_usd if self.knows_cost else None,
            "seconds": round(self.seconds, 3),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return it as names and values, for people."""
        rows = [("runs", f"{self.runs}"), ("completed", f"{self.completed}")]
        rows += [(name, f"{self.status[name]}") for name in ("stopped", "failed") if self.status[name]]
        if self.runs:
            rows.append(("infrastructure errors", f"{self.broken} ({self.broken / self.runs:.1%})"))
        if self.pass_rate is not None:
            rows.append(("checks passed", f"{self.passed} of {self.checked} ({self.pass_rate:.1%})"))
        if self.most_runs > 1:
            rows += [(f"pass@{k}", f"{self.pass_at(k) or 0:.1%}") for k in (1, self.most_runs)]
        if self.mean_reward is not None:
            rows.append(("mean reward", f"{self.mean_reward:.4g}"))
        rows += [("steps", f"{self.steps}"), ("calls", f"{self.calls}")]
        rows.append(("tokens", f"{self.tokens_in} in, {self.tokens_out} out"))
        rows.append(("cost", f"${self.cost_usd:.4f}" if self.knows_cost else "not known (SANDHOG_MODELS_FILE)"))
        return rows
