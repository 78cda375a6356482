"""The sessions of the volume in rows: index → **listing** → `sandhog ps` and `top`, as lines or as a table."""

from collections.abc import Sequence
from datetime import UTC, datetime

from coordinator.service.entries import Entry, Index
from coordinator.service.facts import ENDED
from coordinator.service.views import SessionView, view_of
from coordinator.settings import Settings
from coordinator.visible import visible_line

LEFT = "left"
"""A session that did not end and that no process has: `sandhog resume` goes on with it."""


def sessions_of(settings: Settings, index: Index, *, with_ended: bool) -> list[tuple[str, SessionView]]:
    """Return sessions with their states, the newest first; blocks for the reading of files.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """
    index.load()
    entries = [one for one in index.newest_first() if with_ended or not one.facts.has_ended]
    begun = [one.session_id for one in entries if _is_begun(one)]
    alive: set[str] = set()
    if begun:
        # Redis takes a while to import, which is for nothing where nobody could live.
        from coordinator.commands.elsewhere import living

        alive = living(settings, begun)
    return [(_state(one, alive), view_of(one)) for one in entries]


def _is_begun(entry: Entry) -> bool:
    return not entry.facts.has_ended and entry.facts.status != "queued"


def _state(entry: Entry, alive: set[str]) -> str:
    if entry.facts.status in ENDED or not _is_begun(entry) or entry.session_id in alive:
        return entry.facts.status
    return LEFT


def lines_of(rows: Sequence[tuple[str, SessionView]], now: datetime) -> list[str]:
    """Return the rows as plain lines with tabs between the columns, for pipes."""
    return [
        "\t".join(
            (
                view.session_id,
                state,
                age(view.started_at or view.created_at, view.ended_at or now),
                str(view.step),
                str(view.calls),
                str(view.usage.total_tokens),
                "" if view.cost_usd is None else f"{view.cost_usd:.4f}",
                visible_line(view.model, 100),
                visible_line(said(view), 200),
            )
        )
        for state, view in rows
    ]


def age(begin: datetime, end: datetime) -> str:
    """Return how long it is from one moment to another: `7s`, `12m`, `3h05`, `4d`."""
    seconds = max(0, int((_aware(end) - _aware(begin)).total_seconds()))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}"
    return f"{seconds // 86_400}d"


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def said(view: SessionView) -> str:
    """Return what a session said last, or why it ended."""
    if view.status == "completed":
        return view.text
    return view.stop_reason or view.last_error or view.text
