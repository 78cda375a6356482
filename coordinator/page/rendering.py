"""Templates and what they use: views → **rendering** → HTML. All is escaped, and foreign text made visible."""

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from coordinator.visible import visible, visible_line

MEDIA_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""All files that are served as they are."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def page(template: str, request: Request, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a whole page."""
    about = {name: getattr(request.state, name, None) for name in ("visitor", "asking")}
    html = _environment().get_template(template).render(path=request.url.path, **about, **context)
    return HTMLResponse(_sendable(html), status)


def fragment(template: str, name: str, **context: Any) -> str:
    """Return what one macro of a template makes of its arguments."""
    macro = getattr(_environment().get_template(template).module, name)
    return _sendable(str(macro(**context))).strip()


def address(path: str, /, **query: Any) -> str:
    """Return a path with a query; None and "" are left out."""
    said = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return quote(path) + (f"?{urlencode(said)}" if said else "")


@cache
def static_files() -> Mapping[str, bytes]:
    """Return the content of each file that is served as it is, by name."""
    directory = files("coordinator.page") / "static"
    return {name: (directory / name).read_bytes() for name in MEDIA_TYPES}


@cache
def static_digest() -> str:
    """Return what stands for the present content of these files in their addresses."""
    return hashlib.sha256(b"".join(static_files().values())).hexdigest()[:12]


def duration(seconds: float | None) -> str:
    """Return a stretch of time in at most two units."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < MINUTE_S:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S:02d} s"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S:02d} min"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"


def since(moment: datetime | None) -> str:
    """Return how long ago a moment was."""
    return "" if moment is None else duration((datetime.now(UTC) - moment).total_seconds())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("coordinator.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        visible=visible,
        line=visible_line,
        count=lambda number: f"{number:,}",
        duration=duration,
        since=since,
        money=lambda dollars: "" if dollars is None else f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.4f}",
        moment=lambda moment: "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        clock=lambda at_s: time.strftime("%H:%M:%S", time.gmtime(at_s)),
        address=address,
    )
    environment.globals.update(static=static_digest())
    return environment


def _sendable(html: str) -> str:
    # Lone surrogates, which JSON can hold and UTF-8 cannot.
    return html.encode("utf-8", "replace").decode()
