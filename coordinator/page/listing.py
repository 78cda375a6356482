"""Many sessions as a table: index → **listing** → template. Works on what is in memory; no transcript is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from coordinator.service.entries import Entry
from coordinator.service.facts import Status
from coordinator.service.principals import Principal
from coordinator.service.sessions import Filter, Sessions
from coordinator.service.views import SessionView

PAGE_ROWS = 50
MOST = 1_000_000
TERM_CHARS = 200

Sort = Literal["age", "status", "steps", "calls", "tokens", "cost"]
SORTS: tuple[Sort, ...] = get_args(Sort)
STATUSES: tuple[Status, ...] = get_args(Status)
_KEYS: dict[Sort, Callable[[Entry], object]] = {
    "age": lambda entry: entry.session_id,
    "status": lambda entry: (STATUSES.index(entry.facts.status), entry.session_id),
    "steps": lambda entry: (entry.facts.step, entry.session_id),
    "calls": lambda entry: (entry.facts.calls, entry.session_id),
    "tokens": lambda entry: (entry.facts.usage.total_tokens, entry.session_id),
    "cost": lambda entry: (entry.facts.cost_usd or 0.0, entry.session_id),
}


@dataclass(frozen=True)
class Wanted:
    """Which sessions are asked for, and in which order."""

    status: str = ""
    """A status, or "live" for all that have not ended; "" for all."""
    label: str = ""
    """`key=value`, or a key alone."""
    principal: str = ""
    text: str = ""
    """Part of an id, a prompt, an answer, an error or a model's name; small and capital letters are the same."""
    sort: Sort = "age"
    is_upwards: bool = False
    page: int = 1


@dataclass(frozen=True)
class Listing:
    """One page of the table."""

    rows: list[SessionView]
    total: int
    """Of those that fit."""
    pages: int
    page: int


async def listed(sessions: Sessions, principal: Principal, wanted: Wanted) -> Listing:
    """Return one page of the sessions that the principal may know of."""
    owner = wanted.principal or ("*" if principal.allowance.is_operator else principal.name)
    entries, _ = await sessions.page(principal, Filter(principal=owner), limit=MOST, after=None)
    found = [entry for entry in entries if _fits(entry, wanted)]
    found.sort(key=_KEYS[wanted.sort], reverse=not wanted.is_upwards)  # type: ignore[arg-type]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(1, wanted.page), pages)
    shown = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return Listing([sessions.view(entry) for entry in shown], len(found), pages, page)


def _fits(entry: Entry, wanted: Wanted) -> bool:
    if wanted.status == "live" and entry.facts.has_ended:
        return False
    if wanted.status not in ("", "live", entry.facts.status):
        return False
    if wanted.label:
        name, equals, value = wanted.label.partition("=")
        if name not in entry.record.labels or (equals and entry.record.labels[name] != value):
            return False
    return not wanted.text or _holds(entry, wanted.text.casefold())


def _holds(entry: Entry, term: str) -> bool:
    asked = entry.record.wanted
    texts = (
        entry.session_id,
        entry.facts.model,
        entry.facts.text,
        entry.facts.stop_reason,
        entry.facts.last_error or "",
        (asked.prompt or "") if asked is not None else "",
        *entry.record.labels.values(),
    )
    return any(term in text.casefold() for text in texts)
