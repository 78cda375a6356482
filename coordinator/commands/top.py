"""`sandhog top`: the fleet and its sessions, live."""

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def top(
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, as where the output is no terminal.")] = False,
) -> None:
    """Show running sessions, what they use, and how fast calls are answered; Ctrl-C leaves."""
    # What reads the volume takes a while to import, which the other commands need not wait for.
    from coordinator.commands.listing import sessions_of
    from coordinator.commands.session_table import table_of
    from coordinator.service.entries import Index

    settings, console = read_settings(), Console()
    index = Index(settings.state_dir)
    before: tuple[float, int] | None = None

    def look() -> Group:
        nonlocal before
        rows = sessions_of(settings, index, with_ended=False)
        calls, now = sum(one.facts.calls for one in index), time.monotonic()
        rate = (calls - before[1]) / (now - before[0]) if before else 0.0
        before = now, calls
        states = [state for state, _ in rows]
        counted = "  ".join(f"{states.count(state)} {state}" for state in sorted(set(states))) or "no session runs"
        tokens = sum(view.usage.total_tokens for _, view in rows)
        head = Text(f"{datetime.now():%H:%M:%S}  {counted}  ·  {rate:.1f} calls/s  ·  {tokens:,} tokens", style="bold")
        return Group(head, table_of(rows[:200], datetime.now(UTC), console.width))

    if once or not sys.stdout.isatty():
        console.print(look())
        return
    try:
        with Live(look(), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every_s)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
