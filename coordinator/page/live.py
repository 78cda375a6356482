"""What changes on a session's page while it is open: events → story → **live** → EventSource.

Whole blocks are sent anew, rendered here, so that a page that missed something is right again with the next one.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from fastapi import Request
from redis.exceptions import RedisError

from coordinator.errors import ConfigError
from coordinator.page import bars, rendering
from coordinator.page.routing import Page, cookie_name
from coordinator.page.story import Block, Story
from coordinator.service import approving
from coordinator.service.entries import Entry
from coordinator.service.journal import BEGINNING, EventId, Line
from coordinator.session.step_events import TextDelta
from coordinator.visible import visible

log = logging.getLogger(__name__)

GATHER_S = 0.15
"""Kept events that come so close behind each other are shown at once."""
TICK_S = 2.0
"""Between looks at bars that grow, at approvals, and at whether the login still stands."""


@dataclass
class _Shown:
    """What one open page has."""

    entry: Entry
    page: Page
    csrf: str
    story: Story = field(default_factory=Story)
    sent: dict[str, str] = field(default_factory=dict)
    """By the element's id, what was sent last."""

    async def parts(self) -> list[bytes]:
        """Return messages for all that is other than what was sent."""
        now_s = time.time()
        base = f"/sessions/{self.entry.session_id}"
        found = [("facts", "facts", {"session": self.page.sessions.view(self.entry), "csrf": self.csrf})]
        asks = await approving.waiting(self.page.sessions.cluster.requests, self.entry.session_id)
        found.append(("asks", "asks", {"asks": asks, "base": base, "csrf": self.csrf}))
        found.append(("todos", "todos", {"items": self.story.todos}))
        found.append(("overview", "overview", {"axis": bars.of_all(self.story.blocks, now_s)}))
        messages = [one for element, macro, context in found if (one := self._part(element, macro, context))]
        for block in self.story.changed():
            context = {"block": block, "axis": bars.of_block(block, now_s), "base": base, "root": base}
            if one := self._part(f"block-{block.key}", "block", context):
                messages.append(one)
        messages += self._growing(now_s)
        return messages

    def _growing(self, now_s: float) -> Iterator[bytes]:
        last: Block | None = self.story.blocks[-1] if self.story.blocks else None
        if last is not None and last.is_open:
            context = {"block": last, "axis": bars.of_block(last, now_s)}
            if one := self._part(f"bars-{last.key}", "bars", context):
                yield one

    def _part(self, element: str, macro: str, context: dict[str, object]) -> bytes | None:
        html = rendering.fragment("parts.html", macro, **context)
        if self.sent.get(element) == html:
            return None
        self.sent[element] = html
        return _message("part", {"id": element, "html": html})


async def live(request: Request, page: Page, entry: Entry, after: EventId) -> AsyncIterator[bytes]:
    """Yield the stream of one open page, which shows all up to an event; the browser asks anew where it is cut off."""
    try:
        async for message in _messages(request, page, entry, after):
            yield message
    except (RedisError, ConfigError) as exc:
        log.info("an open page is cut off", extra={"session_id": entry.session_id, "error": str(exc)})


async def _messages(request: Request, page: Page, entry: Entry, after: EventId) -> AsyncIterator[bytes]:
    secret = request.cookies.get(cookie_name(request, "login"), "")
    visitor = await asyncio.to_thread(page.logins.visitor, secret)
    if visitor is None:
        return
    shown = _Shown(entry, page, visitor.csrf)
    clock = asyncio.get_running_loop().time
    told_at, is_behind = clock(), False
    yield b"retry: 2000\n\n"
    async for item in page.sessions.events(entry, BEGINNING):
        if isinstance(item, Line):
            shown.story.take([item])
            if item.id <= after:
                shown.story.changed()
                continue
            is_behind = True
        gathered = is_behind and (item is None or isinstance(item, TextDelta) or clock() - told_at > GATHER_S)
        if gathered or (item is None and clock() - told_at > TICK_S):
            told_at, is_behind = clock(), False
            for message in await shown.parts():
                yield message
            yield b": still there\n\n"
            if await asyncio.to_thread(page.logins.visitor, secret) is None:
                yield _message("left", {})
                return
        if isinstance(item, TextDelta):
            # Behind the block that it belongs to.
            yield _message("said", {"step": item.step, "text": visible(item.text)})
    for message in await shown.parts():
        yield message
    yield _message("over", {})


def _message(kind: str, fields: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
