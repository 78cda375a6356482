"""`sandhog apply`: a kept patch, put into the directory it was made for."""

import sys
from typing import Annotated

import typer

from coordinator.commands.completing import session_ids as known
from coordinator.commands.kept import find_session
from coordinator.commands.outcome import apply_kept
from coordinator.commands.terminal import is_terminal
from coordinator.errors import ConfigError
from coordinator.settings import read_settings
from coordinator.visible import visible

app = typer.Typer(add_completion=False)


@app.command()
def apply(
    session_id: Annotated[str, typer.Argument(help="Session that worked on a private copy.", autocompletion=known)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Put a session's patch into the directory it was made for: all of it, or nothing where something changed since."""
    kept = find_session(read_settings().state_dir, session_id)
    text = visible(kept.patch) if sys.stdout.isatty() else kept.patch
    print(text or "The session changed nothing.", end="" if kept.patch else "\n")
    if not kept.patch:
        return
    if not yes and not (
        is_terminal(sys.stdin, sys.stderr) and typer.confirm(f"Apply this to {kept.workspace}?", err=True)
    ):
        raise ConfigError("Nothing was applied: say yes on a terminal, or give --yes.")
    raise typer.Exit(apply_kept(kept.session_dir, kept.workspace))
