"""`sandhog compare`: what differs between two batches."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.batch.compare import Comparison
from coordinator.batch.lines import RESULTS, read_lines
from coordinator.commands import run_flags
from coordinator.errors import ConfigError
from coordinator.visible import visible_line

app = typer.Typer(add_completion=False)

SHOWN = 100
NAME_CHARS = 60


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Directory of a batch.")],
    second: Annotated[Path, typer.Argument(help="Directory of another one.")],
    json: run_flags.Json = False,
) -> None:
    """Show two batches side by side: their totals, and the tasks that one of them solves more often."""
    for directory in (first, second):
        if not (directory / RESULTS).is_file():
            raise ConfigError(f"{directory} has no {RESULTS}: it is not the directory of a batch.")
    comparison = Comparison.of(read_lines(first / RESULTS), read_lines(second / RESULTS))
    if json:
        print(json_module.dumps(comparison.as_json()))
    else:
        _print(comparison, first, second)
    sys.stdout.flush()


def _print(comparison: Comparison, first: Path, second: Path) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column()
    for path in (first, second):
        table.add_column(Text(visible_line(path.name, NAME_CHARS)))
    rows = [dict(total.rows()) for total in comparison.totals]
    for name in dict.fromkeys([*rows[0], *rows[1]]):
        table.add_row(name, rows[0].get(name, "-"), rows[1].get(name, "-"))
    console = Console(highlight=False)
    console.print(table)
    changed = comparison.changed()
    if changed:
        print(f"\n{len(changed)} tasks differ (share of runs that solved them):")
    for task, one, other in changed[:SHOWN]:
        print(f"  {visible_line(task, NAME_CHARS)}: {_share(one.rate)} → {_share(other.rate)}")
    if len(changed) > SHOWN:
        print(f"  and {len(changed) - SHOWN} more (--json has all)")
    for side, path in enumerate((first, second)):
        missing = comparison.only_in(side)
        if missing:
            print(f"{len(missing)} tasks are only in {visible_line(str(path), NAME_CHARS)}.")


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"
