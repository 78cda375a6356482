"""Calls the function that a task asked for, with cases that the model never saw; the last line is the reward."""

import importlib
import json
import sys
from pathlib import Path

function = getattr(importlib.import_module("solution"), sys.argv[1])
cases = json.loads(Path("cases.json").read_text())
passed = 0
for arguments, expected in cases:
    try:
        passed += function(*arguments) == expected
    except Exception as error:
        print(f"{arguments}: {error!r}")
print(json.dumps({"reward": passed / len(cases)}))
sys.exit(passed < len(cases))
