"""The example of docs/batch.md: an evaluation of ten tasks, played by a model that gets nine of them right."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.commands import SANDHOG, leftovers
from tests.cluster.test_batch import END_S, batch, lines

pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "evaluation"

SOLUTIONS = {
    "leap_year": "lambda y: y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)",
    "fizz_buzz": "lambda n: ('Fizz' * (n % 3 == 0) + 'Buzz' * (n % 5 == 0)) or str(n)",
    "to_roman": "lambda n: 'I' * n",
    "is_anagram": "lambda a, b: sorted(a.lower().replace(' ', '')) == sorted(b.lower().replace(' ', ''))",
    "primes_below": "lambda n: [p for p in range(2, n) if all(p % d for d in range(2, p))]",
    "word_count": "lambda t: (lambda w: {x: w.count(x) for x in w})(__import__('re').findall(r'\\w+', t.lower()))",
    "flatten": "lambda x: [z for y in x for z in flatten(y)] if isinstance(x, list) else [x]",
    "run_lengths": "lambda t: [[k, len(list(g))] for k, g in __import__('itertools').groupby(t)]",
    "luhn": "lambda t: sum(sum(divmod(int(c) * (1 + i % 2), 10)) for i, c in enumerate(reversed(t))) % 10 == 0",
    "is_balanced": (
        "lambda t: (lambda f: f(f, t))(lambda f, s: not s or any(b in s for b in ('()', '[]', '{}')) and "
        "f(f, s.replace('()', '').replace('[]', '').replace('{}', '')))"
    ),
}
"""One of them is wrong."""


def model(messages: list[dict[str, Any]]) -> Turn:
    if messages[-1]["role"] == "tool":
        return Turn("I wrote it.")
    prompt = messages[-1]["content"]
    name = next(name for name in SOLUTIONS if f"function {name} " in prompt)
    return Turn(calls=(ScriptedCall("Write", {"path": "solution.py", "content": f"{name} = {SOLUTIONS[name]}\n"}),))


def test_ten_tasks_are_evaluated_and_compared(state_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluation"
    with ScriptedEndpoint(model) as endpoint:
        with batch(endpoint, state_dir, EXAMPLE / "tasks.jsonl", "--out", str(out), "-j", "4") as process:
            said, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err
        asked = json.dumps(list(endpoint.requests))
    summary = json.loads(said)
    assert (summary["runs"], summary["completed"], summary["passed"]) == (10, 10, 9)
    assert summary["pass_rate"] == pytest.approx(0.9)
    found = {line["id"]: line for line in lines(out)}
    assert found["to-roman"]["check"]["passed"] is False
    assert found["to-roman"]["check"]["reward"] == 0.0
    assert summary["mean_reward"] == pytest.approx(0.9)
    assert "check.py" not in asked
    assert "MCMXCIV" not in asked
    assert "+leap_year = " in (out / "leap-year" / "patch.diff").read_text()
    compared = subprocess.run([*SANDHOG, "compare", str(out), str(out)], capture_output=True, text=True, check=True)
    assert "9 of 10 (90.0%)" in compared.stdout
    assert leftovers(state_dir) == []
