"""What a flood of output costs: the worker's memory at its peak, the guest's, and the time beside a pipe on the host.

Run by hand: `.venv/bin/python tests/bench/flood.py [--megabytes N]`. The peak is the kernel's own (VmHWM, set back
before each flood), so nothing falls between two looks.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox import guest_folder
from sandbox.box import Box
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec
from tools.background import news
from tools.base import RunContext, ToolResult
from tools.bash import Bash, BashParameters
from worker.budget import fit
from worker.spill import SpillBounds, SpillFile

IMAGE = "sandhog-box:latest"
AGENT = 54_321
MIB = 1024 * 1024
GOAL_MIB = 32
GUEST_MEMORY = "for p in /proc/[0-9]*; do grep -q guest.pyc $p/cmdline && grep -h VmHWM $p/status; done"


@dataclass(frozen=True)
class Cost:
    """What one flood cost."""

    name: str
    seconds: float
    grown_mib: float
    spilled_mib: float


class Bench:
    """Runs floods in one box, as a worker would."""

    def __init__(self, box: Box, session_dir: Path, megabytes: int) -> None:
        self._box = box
        self._session_dir = session_dir
        self.command = f"yes | head -c {megabytes * 1_000_000}"
        self._calls = 0

    def flood(self, name: str, bounds: SpillBounds, run: Callable[[RunContext], ToolResult]) -> Cost:
        """Run one flood and return what it cost this process."""
        self._calls += 1
        mark = CallMark(f"flood-{self._calls}", "d", "s", 1, self._calls)
        spill = SpillFile(self._session_dir / "spill", f"flood-{self._calls}", bounds)
        before, started = start_peak(), time.perf_counter()
        fit(run(RunContext(self._box, mark, "bench", spill)), spill, 50_000)
        seconds = time.perf_counter() - started
        return Cost(name, seconds, (peak_kib() - before) / 1024, spill.written_bytes / MIB)

    def in_front(self, context: RunContext) -> ToolResult:
        """Wait for the flood's end."""
        return Bash().run(BashParameters(command=self.command), context)

    def in_background(self, context: RunContext) -> ToolResult:
        """Let it run in the background and look at it once at its end."""
        begun = Bash().run(BashParameters(command=self.command, background=True), context)
        name = str(begun.data["background_id"])
        while self._box.background_output("s", name, 0, 0).state.is_running:
            time.sleep(0.01)
        return ToolResult(status="success", text=news(context, name).text)

    def guest_mib(self) -> float:
        """How much memory the guest had at most."""
        mark = CallMark("memory", "d", "s", 1, self._calls + 1)
        text = self._box.run(RunRequest(mark, command=GUEST_MEMORY)).stdout.text()
        return max(int(line.split()[1]) for line in text.splitlines()) / 1024


def start_peak() -> int:
    """Set this process's peak back and return its memory now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _kib("VmRSS:")


def peak_kib() -> int:
    """This process's memory at its peak, in KiB."""
    return _kib("VmHWM:")


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@contextmanager
def opened(megabytes: int) -> Iterator[Bench]:
    """A box and its directories, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="sandhog-bench-") as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        for name in ("work", "spill"):
            (root / name).mkdir()
        os.chown(root / "work", AGENT, AGENT)
        folder = guest_folder.install(root / "guest")
        engine = DockerEngine(EngineSettings(f"flood-{os.getpid()}", folder, root / "records"))
        try:
            box = engine.start(BoxSpec(IMAGE, root / "work", root / "spill", AGENT, AGENT), "s", 1)
            try:
                yield Bench(box, root, megabytes)
            finally:
                box.close()
        finally:
            engine.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=250)
    megabytes = parser.parse_args().megabytes
    with opened(megabytes) as bench:
        everything = SpillBounds(call_bytes=megabytes * 1_000_000, session_bytes=1 << 40)
        costs = [
            bench.flood("foreground, bound of 64 MiB", SpillBounds(), bench.in_front),
            bench.flood("foreground, all of it spilled", everything, bench.in_front),
            bench.flood("background, its last 16 MiB", SpillBounds(), bench.in_background),
        ]
        guest_mib = bench.guest_mib()
        started = time.perf_counter()
        subprocess.run(["bash", "-c", f"{bench.command} | cat > /dev/null"], check=True)
        host_s = time.perf_counter() - started
    print(f"| {megabytes} MB of output | worker grew by (goal ≤ {GOAL_MIB} MiB) | spilled | time | × host's pipe |")
    print("|---|---|---|---|---|")
    for cost in costs:
        grown, spilled = f"{cost.grown_mib:.1f} MiB", f"{cost.spilled_mib:.0f} MiB"
        print(f"| {cost.name} | {grown} | {spilled} | {cost.seconds:.2f} s | {cost.seconds / host_s:.1f} |")
    print(f"\nThe guest had {guest_mib:.1f} MiB at most.")


if __name__ == "__main__":
    main()
