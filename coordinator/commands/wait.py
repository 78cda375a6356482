"""`sandhog wait`: until sessions have ended, for scripts."""

import sys
from typing import Annotated

import typer

from coordinator.commands.completing import session_ids as known
from coordinator.visible import visible_line

app = typer.Typer(add_completion=False)


@app.command()
def wait(
    session_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Sessions; on this machine beginnings are enough.", autocompletion=known),
    ],
    url: Annotated[
        str | None, typer.Option(help="A server that has them (SANDHOG_URL); else SANDHOG_STATE_DIR is looked at.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds at most.", show_default="no end")
    ] = None,
) -> None:
    """Wait for sessions to end, and say how each did, one a line.

    With --url or SANDHOG_URL a server is asked, with SANDHOG_API_TOKEN; else the state directory of this machine is
    looked at. Exit codes: 0 all completed, 1 one did not, or the time is over, 2 there is no such session.
    """
    # What reads the volume takes a while to import, which the help need not wait for.
    from coordinator.commands.waiting import statuses

    has_all_completed = True
    for session_id, status in statuses(session_ids, url, timeout_s):
        print(f"{session_id} {visible_line(status, 200)}")
        sys.stdout.flush()
        has_all_completed &= status == "completed"
    raise typer.Exit(0 if has_all_completed else 1)
