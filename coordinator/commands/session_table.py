"""Rows of sessions as a table: listing → **session_table** → `sandhog ps` and `top` on a terminal."""

from collections.abc import Iterable
from datetime import datetime

from rich import box
from rich.table import Table
from rich.text import Text

from coordinator.commands.listing import LEFT, age, said
from coordinator.service.views import SessionView
from coordinator.visible import visible_line

_STYLES = {"completed": "green", "failed": "red", "stopped": "yellow", LEFT: "yellow", "waiting": "bold yellow"}
SAID_WIDTH = 120
WIDE = 110
"""Columns from which on models are shown."""


def table_of(rows: Iterable[tuple[str, SessionView]], now: datetime, width: int) -> Table:
    """Return the rows as a table for a terminal of so many columns; a narrow one has no room for models."""
    is_wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", width=width)
    table.add_column("session", no_wrap=True, min_width=24)
    table.add_column("state", no_wrap=True, min_width=9)
    for name, least in (("age", 5), ("step", 4), ("calls", 5), ("tokens", 8), ("cost", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=least)
    if is_wide:
        table.add_column("model", no_wrap=True, min_width=16, max_width=24)
    table.add_column("last", no_wrap=True, overflow="ellipsis", ratio=1)
    for state, view in rows:
        table.add_row(
            view.session_id,
            Text(state, style=_STYLES.get(state, "")),
            age(view.started_at or view.created_at, view.ended_at or now),
            str(view.step),
            str(view.calls),
            f"{view.usage.total_tokens:,}",
            "" if view.cost_usd is None else f"${view.cost_usd:.2f}",
            *([Text(visible_line(view.model, 24))] if is_wide else []),
            Text(visible_line(said(view), SAID_WIDTH)),
        )
    return table
