"""What changes on a session's page while it is open: events → story → **live** → EventSource.

Whole blocks are sent anew, rendered here, so that a page that missed something is right again with the next one.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from redis.exceptions import RedisError

from coordinator.errors import ConfigError
from coordinator.page import bars, rendering
from coordinator.page.agents import Agents
from coordinator.page.blocks import Block
from coordinator.page.login import Visitor
from coordinator.page.routing import Page, cookie_name
from coordinator.page.story import Story
from coordinator.service.entries import Entry
from coordinator.service.journal import BEGINNING, EventId, Line
from coordinator.session.step_events import TextDelta
from coordinator.visible import visible

log = logging.getLogger(__name__)

GATHER_S = 0.15
"""Kept events that come so close behind each other are shown at once."""
TICK_S = 2.0
"""Between looks at bars that grow, at approvals, and at whether the login still stands."""


AGENTS_TICK_S = 0.5
"""The same while sub-agents are at work."""


@dataclass(frozen=True)
class Watched:
    """What an open page is about: a session, or one sub-agent of it."""

    entry: Entry
    agent: str = ""
    """The sub-agent's name."""
    directory: Path | None = None
    """Of the sub-agent's transcript."""

    @property
    def root(self) -> str:
        """Path of the session's page."""
        return f"/sessions/{self.entry.session_id}"

    @property
    def base(self) -> str:
        """Path of the open page."""
        return f"{self.root}/agents/{self.agent}" if self.agent else self.root


class _Shown:
    """What one open page has."""

    def __init__(self, watched: Watched, page: Page, visitor: Visitor) -> None:
        self.story = Story()
        self.watched = watched
        self.page = page
        self._visitor = visitor
        self._agents = Agents(watched.entry.directory)
        self._sent: dict[str, str] = {}
        """By the element's id, what was sent last."""
        self._asking = -1

    @property
    def tick_s(self) -> float:
        """How long nothing may be looked at."""
        return AGENTS_TICK_S if self._agents.are_running else TICK_S

    async def parts(self) -> list[bytes]:
        """Return messages for all that is other than what was sent."""
        now_s = time.time()
        root, base = self.watched.root, self.watched.base
        at_work = await asyncio.to_thread(self._agents.read, self.story.blocks)
        messages = [] if self.watched.agent else await self._about_the_session()
        messages += self._part("todos", "todos", items=self.story.todos)
        messages += self._part("overview", "overview", axis=bars.of_all(self.story.blocks, now_s))
        # A sub-agent is ended by the call that began it.
        csrf = "" if self.watched.agent or self.watched.entry.facts.has_ended else self._visitor.csrf
        for block in self.story.changed():
            axis = bars.of_block(block, now_s)
            messages += self._part(
                f"block-{block.key}", "block", block=block, axis=axis, base=base, root=root, csrf=csrf
            )
        # One that has ended is in its block, which has changed.
        for child in (child for child in at_work if child.ended_s is None):
            messages += self._part(f"agent-{child.name}", "agent", child=child, root=root)
        messages += self._growing(now_s)
        asking = await self.page.asking.count(self._visitor.principal)
        if asking != self._asking:
            self._asking = asking
            messages.append(_message("asking", {"count": asking}))
        return messages

    async def _about_the_session(self) -> list[bytes]:
        entry, csrf = self.watched.entry, self._visitor.csrf
        asks = await self.page.asking.of(entry)
        return [
            *self._part("facts", "facts", session=self.page.sessions.view(entry), csrf=csrf),
            *self._part("asks", "asks", asks=asks, csrf=csrf),
        ]

    def _growing(self, now_s: float) -> list[bytes]:
        last: Block | None = self.story.blocks[-1] if self.story.blocks else None
        if last is None or not last.is_open:
            return []
        return self._part(f"bars-{last.key}", "bars", block=last, axis=bars.of_block(last, now_s))

    def _part(self, element: str, macro: str, **context: object) -> list[bytes]:
        html = rendering.fragment("parts.html", macro, **context)
        if self._sent.get(element) == html:
            return []
        self._sent[element] = html
        return [_message("part", {"id": element, "html": html})]


@dataclass
class _Pace:
    """When an open page is told what is new."""

    told_at: float
    is_behind: bool = False
    """Something was kept that it has not been told."""

    def is_due(self, item: Line | TextDelta | None, now: float, tick_s: float) -> bool:
        """Whether it is now, with what has just come; True begins the next wait."""
        gathered = self.is_behind and (not isinstance(item, Line) or now - self.told_at > GATHER_S)
        is_due = gathered or (item is None and now - self.told_at > tick_s)
        if is_due:
            self.told_at, self.is_behind = now, False
        return is_due


async def live(request: Request, page: Page, watched: Watched, after: EventId) -> AsyncIterator[bytes]:
    """Yield the stream of one open page, which shows all up to an event; the browser asks anew where it is cut off."""
    secret = request.cookies.get(cookie_name(request, "login"), "")
    try:
        visitor = await asyncio.to_thread(page.logins.visitor, secret)
        if visitor is not None:
            async for message in _messages(_Shown(watched, page, visitor), secret, after):
                yield message
    except (RedisError, ConfigError, OSError) as exc:
        session_id = watched.entry.session_id
        log.info("an open page is cut off", extra={"session_id": session_id, "error": str(exc)})


async def _messages(shown: _Shown, secret: str, after: EventId) -> AsyncIterator[bytes]:
    watched, page = shown.watched, shown.page
    clock = asyncio.get_running_loop().time
    pace = _Pace(clock())
    yield b"retry: 2000\n\n"
    async for item in page.sessions.events(watched.entry, BEGINNING, watched.directory):
        if isinstance(item, Line):
            shown.story.take([item])
            if item.id <= after:
                shown.story.changed()
                continue
            pace.is_behind = True
        if pace.is_due(item, clock(), shown.tick_s):
            for message in await shown.parts():
                yield message
            yield b": still there\n\n"
            if await asyncio.to_thread(page.logins.visitor, secret) is None:
                yield _message("left", {})
                return
        if isinstance(item, TextDelta) and not watched.agent:
            # Behind the block that it belongs to.
            yield _message("said", {"step": item.step, "text": visible(item.text)})
        if watched.agent and shown.story.has_ended:
            break
    for message in await shown.parts():
        yield message
    yield _message("over", {})


def _message(kind: str, fields: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
