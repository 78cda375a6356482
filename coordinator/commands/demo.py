"""The demo: a small project with a bug, and a scripted model that finds and mends it with real tool calls.

Only the model's words are scripted. The calls run like any session's, and the last answer quotes what the
tests really printed.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.endpoint.scripted import Script, ScriptedCall, Turn, step_of

DEMO_MODEL = "scripted-demo"
DEMO_PROMPT = "The tests of this project fail. Find out why, mend it, and show that they pass."
DEMO_NOTICE = (
    "This is the demo: the model is scripted, so its words are fixed beforehand. "
    "Everything else is real: the queue, the worker, the box, the calls and their results."
)

_PROJECT = Path(__file__).parent / "demo_project"
_BUG = '    cents = int(fraction or "0")\n'
_FIX = '    cents = int(fraction.ljust(2, "0"))\n'
_TEST_COMMAND = "python3 -m pytest -q"
_CLOSING_LINE = re.compile(
    r"^=*\s*(\d+ (?:passed|failed|error|skipped|deselected).*? in [\d.]+s.*?)\s*=*$", re.MULTILINE
)


def copy_demo_project(into: Path) -> Path:
    """A fresh copy of the demo's project at `into`, which must not exist; its path."""
    shutil.copytree(_PROJECT, into, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return into


def demo_script() -> Script:
    """What the scripted model says: look, mend, test, report."""
    return _turn


def _turn(messages: list[dict[str, Any]]) -> Turn:
    turns = (_look, _mend, _test, _report)
    return turns[min(step_of(messages), len(turns) - 1)](messages)


def _look(_: Sequence[dict[str, Any]]) -> Turn:
    return Turn(
        text="I look for the code that reads amounts, and at the tests that fail.",
        calls=(
            ScriptedCall("Grep", {"pattern": "parse_amount", "path": "."}),
            ScriptedCall("Read", {"path": "ledger/money.py"}),
            ScriptedCall("Read", {"path": "tests/test_money.py"}),
        ),
        chunk_delay_s=0.02,
    )


def _mend(_: Sequence[dict[str, Any]]) -> Turn:
    return Turn(
        text='"12.5" has one decimal: its 5 is read as 5 cents, not 50. The fraction must be filled up to two places.',
        calls=(ScriptedCall("Edit", {"path": "ledger/money.py", "old_string": _BUG, "new_string": _FIX}),),
        chunk_delay_s=0.02,
    )


def _test(_: Sequence[dict[str, Any]]) -> Turn:
    return Turn(text="Now the tests.", calls=(ScriptedCall("Bash", {"command": _TEST_COMMAND}),), chunk_delay_s=0.02)


def _report(messages: Sequence[dict[str, Any]]) -> Turn:
    return Turn(text=report(messages[-1].get("content")), chunk_delay_s=0.02)


def report(answer: Any) -> str:
    """The demo's last words about the answer of its test call: what it really says, good or bad."""
    result = _result(answer)
    closing = _CLOSING_LINE.findall(result)
    line = closing[-1] if closing else ""
    if "passed" in line and "failed" not in line and "error" not in line:
        words = (
            "The cause was in `ledger/money.py`: an amount with one decimal lost its zero. "
            f"It is mended, and the tests pass. pytest closed with: {line}"
        )
    elif line:
        words = f"I changed `ledger/money.py`, but the tests do not pass. pytest closed with: {line}"
    else:
        said = result.strip()[-600:] or "nothing"
        words = f"I changed `ledger/money.py`, but the tests did not run to their end. The answer said: {said}"
    return f"{words}\n\n(The model of this demo is scripted; the line from pytest is not.)"


def _result(answer: Any) -> str:
    """The text of a tool answer, or its error, or the answer as it is."""
    try:
        fields = json.loads(answer)
        error = fields.get("error") or {}
        return "\n".join(str(part) for part in (fields.get("text"), error.get("message")) if part)
    except (TypeError, ValueError, AttributeError):
        return str(answer or "")
