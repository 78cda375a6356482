"""`sandhog gc`: remove now what is kept no longer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.acting import keep_action
from coordinator.commands.wording import size
from coordinator.embedded import dead_runs, sweep
from coordinator.errors import ConfigError, SandhogError
from coordinator.settings import Settings, read_settings
from coordinator.visible import visible, visible_line
from worker.contract.removals import REMOVALS, Kind, Removal

app = typer.Typer(add_completion=False)
WIDTH = 100


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False,
) -> None:
    """Remove private copies, spilled output and sessions beyond their time or size, and what killed commands left.

    Workers do the same by themselves. How long each is kept stands in section [retention] of the settings; nothing
    goes of a session that is at work. `sandhog show` tells what was removed.
    """
    settings = read_settings()
    if not dry_run:
        keep_action(settings.state_dir, "gc")
    removed = [*_of_runs(settings.state_dir / "runs", is_trial=dry_run), *_of_sessions(settings, is_trial=dry_run)]
    if as_json:
        print(REMOVALS.dump_json(removed).decode())
        return
    for one in removed:
        print(visible_line(f"{one.session}  {one.kind.value}, {size(one.size_bytes)}  ({one.why})", WIDTH))
    verb = "would go" if dry_run else "removed"
    print(f"{len(removed)} {verb}, {size(sum(one.size_bytes for one in removed))}")


def _of_runs(runs: Path, *, is_trial: bool) -> list[Removal]:
    names = [run.name for run in dead_runs(runs)] if is_trial or not runs.is_dir() else sweep(runs)
    return [Removal(session=name, kind=Kind.RUN, size_bytes=0, why="its command is gone") for name in names]


def _of_sessions(settings: Settings, *, is_trial: bool) -> list[Removal]:
    environment = {
        **os.environ,
        "SANDHOG_STATE_DIR": str(settings.state_dir),
        # None at all: then the locks of this machine's commands tell who lives.
        "SANDHOG_REDIS_URL": settings.redis_url or "",
    }
    argv = [sys.executable, "-P", "-m", "worker", "gc", *(["--dry-run"] if is_trial else [])]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().rpartition("sandhog worker: ")[2]
        raise (ConfigError if done.returncode == 2 else SandhogError)(words)
    # What could not be removed is named there.
    print(visible(done.stderr), end="", file=sys.stderr)
    return REMOVALS.validate_json(done.stdout)
