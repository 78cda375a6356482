"""`sandhog ps`: the sessions of this machine or cluster."""

import json
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from coordinator.commands import run_flags
from coordinator.errors import ConfigError
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)

STATES = ("queued", "running", "waiting", "idle", "left", "completed", "stopped", "failed", "cancelled")
NOTHING = "No session runs. Those that ended: sandhog ps --all"


@app.command()
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also sessions that have ended.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only sessions in this state; may be repeated.", autocompletion=lambda: STATES),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    as_json: run_flags.Json = False,
) -> None:
    """List sessions: those that run, wait, or were left by a process that died; with --all every one.

    State `left`: it did not end and nobody has it; `sandhog resume ID` goes on with it.
    """
    # What reads the volume takes a while to import, which the other commands need not wait for.
    from coordinator.commands.listing import lines_of, sessions_of
    from coordinator.service.entries import Index

    wanted = set(status or ())
    unknown = sorted(wanted - set(STATES))
    if unknown:
        raise ConfigError(f"--status {unknown[0]}: there is no such state; known: {', '.join(STATES)}.")
    settings = read_settings()
    rows = sessions_of(settings, Index(settings.state_dir), with_ended=everything or bool(wanted))
    rows = [row for row in rows if not wanted or row[0] in wanted]
    shown, now = rows[:limit], datetime.now(UTC)
    if as_json:
        print(json.dumps([{**view.model_dump(mode="json"), "status": state} for state, view in shown]))
    elif sys.stdout.isatty():
        from rich.console import Console

        from coordinator.commands.session_table import table_of

        console = Console()
        console.print(table_of(shown, now, console.width) if shown else NOTHING)
    else:
        print(*lines_of(shown, now), sep="\n", end="\n" if shown else "")
    if len(rows) > len(shown):
        print(f"sandhog: {len(rows) - len(shown)} older ones are not shown; --limit shows more", file=sys.stderr)
    sys.stdout.flush()
