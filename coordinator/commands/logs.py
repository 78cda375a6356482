"""`sandhog logs`: a session's timeline, also while another process runs it."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.completing import SessionId
from coordinator.commands.kept import directory_of
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)

POLL_S = 0.3


@app.command()
def logs(
    session_id: SessionId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the session has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The events, one JSON object a line.")] = False,
) -> None:
    """Print a session's timeline as `sandhog run` shows it; Ctrl-C ends only this command."""
    # What reads the volume takes a while to import, which the other commands need not wait for.
    from coordinator.commands.watching import Watching

    watching = Watching(Path(directory_of(read_settings().state_dir, session_id)), sys.stdout, as_json=as_json)
    try:
        while not watching.show_new() and follow:
            sys.stdout.flush()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    sys.stdout.flush()
