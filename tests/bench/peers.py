"""One command and one small read in our box and in the peers' boxes, taking turns within one run.

Run by hand: `.venv/bin/python -m tests.bench.peers [--peer-python PYTHON] [--calls N] [--no-docs]`. PYTHON is the
interpreter of an environment with the peers, of the same version as the image's python3; without it one is made for the
run, with `/usr/bin/python3` and pip. What is missing there is skipped with a line. Writes `docs/performance-peers.md`,
and `docs/peers.png` when either interpreter has matplotlib.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.settings import DEFAULT_IMAGE
from sandbox import guest_folder
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark, ReadRequest, RunRequest
from sandbox.spec import BoxSpec
from tests.bench.peer_drivers import COMMAND, DRIVERS, FILE, FILE_BYTES, MAKE_FILE, PLOT

DOCS = Path(__file__).resolve().parents[2] / "docs"
PEERS = ("docker==7.2.0", "swe-rex==1.4.0", "mini-swe-agent==2.4.6", "matplotlib")
AGENT = 10_001
TURN = 5
"""Calls of one way before it is another's turn."""
HOST, OURS = "the host itself, without a box", "Sandhog"
TITLES = {"command": f"one call of `{COMMAND}`", "read": f"reading a file of {FILE_BYTES} bytes"}
HOW = {
    HOST: "`subprocess.run` of a shell; `open`",
    OURS: "Bash and Read in a box, as the agent's user, with every control",
    "Docker SDK, exec_run": "`exec_run` of a shell; of `cat`",
    "mini-swe-agent": "its Docker environment: `docker exec` of a login shell; of `cat`",
    "SWE-ReX": "`execute` of a shell over HTTP; `read_file`",
    "SWE-ReX, session": "`run_in_session`: a shell that stays",
}


@dataclass
class Way:
    """Somebody's box, and what its calls took."""

    name: str
    version: str
    acts: dict[str, Callable[[], float]]
    seconds: dict[str, list[float]] = field(default_factory=dict)


def timed(act: Callable[[], object]) -> float:
    """Seconds of the act."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


@contextmanager
def ours() -> Iterator[Way]:
    """A box of ours."""
    directory = Path(tempfile.mkdtemp(prefix="hog-peers-"))
    directory.chmod(0o755)
    engine = None
    try:
        workspace, spill = directory / "workspace", directory / "spill"
        workspace.mkdir()
        spill.mkdir()
        os.chown(workspace, AGENT, AGENT)
        guest = guest_folder.install(directory / "guest")
        engine = DockerEngine(EngineSettings(f"peers-{os.getpid()}", guest, directory / "records"))
        box = engine.start(BoxSpec(DEFAULT_IMAGE, workspace, spill, AGENT, AGENT), "s", 1)
        numbers = iter(range(10**9))

        def mark() -> CallMark:
            return CallMark(f"k{next(numbers)}", "", "s", 1, 0)

        def command() -> None:
            assert box.run(RunRequest(mark(), command=COMMAND)).exit_code == 0

        def read() -> None:
            assert len(box.read(ReadRequest(mark(), FILE)).text) == FILE_BYTES

        try:
            box.run(RunRequest(mark(), command=MAKE_FILE))
            yield Way(OURS, "", {"command": lambda: timed(command), "read": lambda: timed(read)})
        finally:
            box.close()
    finally:
        if engine is not None:
            engine.close()
        shutil.rmtree(directory)


@contextmanager
def host() -> Iterator[Way]:
    """No box: the floor."""
    with tempfile.NamedTemporaryFile(prefix="hog-peers-") as file:
        file.write(b"x" * FILE_BYTES)
        file.flush()
        path = Path(file.name)

        def command() -> None:
            subprocess.run(["bash", "-c", COMMAND], check=True, stdin=subprocess.DEVNULL)

        yield Way(HOST, "", {"command": lambda: timed(command), "read": lambda: timed(path.read_bytes)})


@contextmanager
def peer(python: str, name: str, driver: str) -> Iterator[list[Way]]:
    """A peer's box; nothing, and a line that says why, when it cannot be had."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, "-c", driver, DEFAULT_IMAGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        said, ask = process.stdout, process.stdin
        try:
            line = said.readline()
            if not line:
                process.wait()
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
                print(f"{name}: skipped, it cannot be used with {python}: {lines[-1] if lines else 'it said nothing'}")
                yield []
                return
            about = json.loads(line)

            def act(what: str) -> Callable[[], float]:
                def answered() -> float:
                    print(what, file=ask, flush=True)
                    return float(said.readline())

                return answered

            version = f"{about['package']} {about['version']}"
            ways = [Way(name, version, {"command": act("command"), "read": act("read")})]
            if "session" in about["ways"]:
                ways.append(Way(f"{name}, session", version, {"command": act("session")}))
            yield ways
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


@contextmanager
def environment(given: str | None) -> Iterator[str]:
    """The interpreter that the peers run by, in an environment of this run's own where none is given."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="hog-peers-") as directory:
        subprocess.run(["/usr/bin/python3", "-m", "venv", directory], check=True)
        python = f"{directory}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        yield python


def measure(ways: list[Way], calls: int) -> None:
    """Let the ways take turns until each has made so many calls of each kind."""
    for what in TITLES:
        taking = [way for way in ways if what in way.acts]
        for way in taking:
            way.acts[what]()
        for start in range(0, calls, TURN):
            for way in taking:
                took = [way.acts[what]() for _ in range(min(TURN, calls - start))]
                way.seconds.setdefault(what, []).extend(took)


def table(ways: list[Way], what: str) -> list[str]:
    """The lines of a table in Markdown."""
    floor = statistics.median(next(way for way in ways if way.name == OURS).seconds[what])
    lines = ["| where | version | how | median ms | 9 of 10 within ms | × Sandhog |", "|---|---|---|---:|---:|---:|"]
    for way in ways:
        if what in way.seconds:
            seconds = sorted(way.seconds[what])
            middle, late = statistics.median(seconds), seconds[int(len(seconds) * 0.9)]
            lines.append(
                f"| {way.name} | {way.version} | {HOW[way.name]} | {middle * 1000:.2f} | {late * 1000:.2f} "
                f"| {middle / floor:.2f} |"
            )
    return lines


def document(ways: list[Way], calls: int, load: float, has_plot: bool) -> str:
    """The page of the docs."""
    parts = [
        "# Beside the peers",
        "",
        f"What a call costs in a box that is up, of the image `{DEFAULT_IMAGE}`, {calls} calls each, the ways taking "
        f"turns of {TURN} within one run on a machine of {os.cpu_count()} processors with a load of {load:.0f} before "
        "it began. Read the ratios, not the milliseconds, and where the load is above the number of processors not "
        "even those closely: they differ from run to run. Ours is the box's own cost; what queue and worker add is in "
        "`tests/bench/call_cost.py`. The peers were given neither limits nor controls, and run everything as root. "
        "SWE-ReX's server was put into the box by a mount.",
        "",
        *(["![Medians of one run](peers.png)", ""] if has_plot else []),
    ]
    for what, title in TITLES.items():
        parts += [f"## {title[0].upper()}{title[1:]}", "", *table(ways, what), ""]
    parts += ["Made by `tests/bench/peers.py`, which says how to run it.", ""]
    return "\n".join(parts)


def plot(ways: list[Way], pythons: list[str]) -> bool:
    """Draw the medians with the first interpreter that can; whether one could."""
    rows = {
        title.replace("`", ""): {w.name: statistics.median(w.seconds[what]) * 1000 for w in ways if what in w.seconds}
        for what, title in TITLES.items()
    }
    for python in pythons:
        ended = subprocess.run(
            [python, "-c", PLOT, json.dumps(rows), str(DOCS / "peers.png")], capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            return True
    print("no plot: no interpreter here has matplotlib")
    return False


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with the peers' packages; default: made for this run")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--no-docs", action="store_true", help="print only")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        python = stack.enter_context(environment(arguments.peer_python))
        ways = [stack.enter_context(host()), stack.enter_context(ours())]
        for name, driver in DRIVERS.items():
            ways += stack.enter_context(peer(python, name, driver))
        measure(ways, arguments.calls)
        has_plot = not arguments.no_docs and plot(ways, [sys.executable, python])
    for what, title in TITLES.items():
        print(f"\n{title}")
        print("\n".join(table(ways, what)))
    if not arguments.no_docs:
        (DOCS / "performance-peers.md").write_text(document(ways, arguments.calls, load, has_plot), encoding="utf-8")


if __name__ == "__main__":
    main()
