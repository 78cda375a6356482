"""How long `sandhog run` takes from its start to its first model request, and to its end.

Run by hand: `.venv/bin/python tests/bench/first_request.py [--runs N]`. The first run builds the guest folder and is
printed apart; the interpreter's own start is measured beside it, for the ratio.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coordinator.endpoint.scripted import ScriptedEndpoint, Turn

START = "from coordinator.start import main; main()"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    arrivals: list[float] = []

    def script(messages: list[dict[str, Any]]) -> Turn:
        arrivals.append(time.perf_counter())
        return Turn("hello")

    with ScriptedEndpoint(script) as endpoint, tempfile.TemporaryDirectory(prefix="sandhog-bench-") as scratch:
        workspace = Path(scratch) / "workspace"
        workspace.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": scratch,
            "OPENAI_BASE_URL": endpoint.base_url,
            "SANDHOG_MODEL": "scripted",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        rows, bare = [], []
        for _ in range(runs + 1):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append(time.perf_counter() - started)
            started = time.perf_counter()
            argv = [sys.executable, "-c", START, "run", "say hello", "--workspace", str(workspace), "--json"]
            subprocess.run(argv, env=environment, capture_output=True, check=True)
            rows.append((arrivals[-1] - started, time.perf_counter() - started))
    first, later = rows[0], rows[1:]
    request_s = statistics.median(row[0] for row in later)
    print("| start of `sandhog run` | to the first model request | to the end | × a bare interpreter's start |")
    print("|---|---|---|---|")
    print(f"| the first | {first[0]:.2f} s | {first[1]:.2f} s | |")
    end_s, ratio = statistics.median(row[1] for row in later), request_s / statistics.median(bare)
    print(f"| later, median of {runs} | {request_s:.2f} s | {end_s:.2f} s | {ratio:.0f} |")


if __name__ == "__main__":
    main()
