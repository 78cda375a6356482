"""Breakers as the coordinator sees them: which tools a model is shown, and what operators are shown.

breakers → **loop** → model. Here they are only looked at; the worker's gate refuses calls and counts faults, so a
look that fails because Redis is away shows the tools that were shown before.
"""

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.session.events import EventSink
from coordinator.session.session_events import Notice
from coordinator.session.step_events import ToolsShown
from coordinator.visible import visible_line
from tools.registry import Registry
from worker.contract import breaker, keys
from worker.contract.breaker import BreakerView, Phase

log = logging.getLogger(__name__)

NO_TOOLS = (
    "All tools are switched off for now, since they failed again and again. Give your final answer with what you "
    "know: what is done, what is left, and what failed."
)


class Listed(BaseModel):
    """One breaker that has something to tell."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scope: str
    """`session` or `node`."""
    name: str
    """Whose: the session's id or the node's name."""
    tool: str
    phase: Phase
    """`closed` with faults counted, `open`, or `half_open`: the next call is the probe, or one runs."""
    faults: int
    """In a row."""
    last_fault: str
    """Error code."""
    retry_in_s: float
    """Seconds until a call may try the tool; 0 when one may now."""
    is_probing: bool
    """The probe runs."""


class Listing(BaseModel):
    """What `sandhog breakers --json` prints."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    breakers: list[Listed]


class Breakers:
    """Looks at breakers in Redis; changes nothing."""

    def __init__(self, client: Redis) -> None:
        self._redis = client

    async def open_tools(self, session: str, node: str | None) -> dict[str, BreakerView]:
        """Return the tools that are switched off for a session, by name, with the longer of two cool-downs.

        Args:
            session: The session.
            node: Its node; None while it has none.

        Raises:
            RedisError: Redis does not answer.
        """
        names = [keys.session_breakers(session), *([keys.node_breakers(node)] if node else [])]
        found = [view for views in await self._look(names) for view in views if view.phase is Phase.OPEN]
        return {view.tool: view for view in sorted(found, key=lambda view: view.retry_in_s)}

    async def every(self) -> list[Listed]:
        """Return all breakers that have something to tell, by scope, name and tool.

        Raises:
            RedisError: Redis does not answer.
        """
        names = sorted([_text(key) async for key in self._redis.scan_iter(keys.BREAKERS, count=1_000)])
        listed = []
        for key, views in zip(names, await self._look(names), strict=True):
            scope, _, name = key.removeprefix(keys.BREAKERS.removesuffix("*")).partition(":")
            for tool, phase, faults, why, retry_in_s, is_probing in views:
                listed.append(
                    Listed(
                        scope=scope,
                        name=name,
                        tool=tool,
                        phase=phase,
                        faults=faults,
                        last_fault=why,
                        retry_in_s=retry_in_s,
                        is_probing=is_probing,
                    )
                )
        return listed

    async def _look(self, names: Sequence[str]) -> list[list[BreakerView]]:
        # Plain reads, before the time is asked for: that is never earlier than what it is compared with.
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(name)
            records = await pipe.execute()
        if not any(records):
            return [[] for _ in names]
        now_ms = breaker.now_ms(await self._redis.time())
        return [breaker.views(record, now_ms) for record in records]


class ShownTools:
    """The tools that one session's model is shown, request by request."""

    def __init__(self, breakers: Breakers, registry: Registry, session: str, emit: EventSink, *, strict: bool) -> None:
        self._breakers = breakers
        self._registry = registry
        self._session = session
        self._emit = emit
        self._strict = strict
        self._hidden: frozenset[str] = frozenset()
        self._shown: list[dict[str, Any]] | None = None
        self.changes = 0
        """How often the list changed; each time the endpoint's cache of the prompt was void."""

    async def schemas(self, node: str | None) -> list[dict[str, Any]]:
        """Return the schemas for the next request; none when no tool that runs on a node is left.

        Args:
            node: The session's node; None while it has none.
        """
        try:
            off = await self._breakers.open_tools(self._session, node)
        except RedisError as exc:
            log.info("the breakers could not be looked at", extra={"session_id": self._session, "error": str(exc)})
        else:
            self._note(off)
        left = [name for name in self._registry.names() if name not in self._hidden and not self._is_at_home(name)]
        hidden = self._hidden if left or not self._hidden else self._registry.names()
        shown = self._registry.function_schemas(hidden, strict=self._strict)
        if shown != self._shown:
            self._shown = shown
            self._emit(ToolsShown(tools=shown))
        return shown

    def _is_at_home(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is not None and tool.runs_on == "coordinator"

    def _note(self, off: dict[str, BreakerView]) -> None:
        hidden = frozenset(off) & frozenset(self._registry.names())
        if hidden == self._hidden:
            return
        for name in sorted(hidden - self._hidden):
            view = off[name]
            text = f"{name} is switched off for {view.retry_in_s:.0f} s: {view.faults} faults in a row ({view.why})."
            self._emit(Notice(level="warning", text=text))
        for name in sorted(self._hidden - hidden):
            self._emit(Notice(level="info", text=f"{name} is shown to the model again; the next call tries it."))
        self._hidden = hidden
        self.changes += 1


def table(listed: Sequence[Listed]) -> str:
    """Return the breakers as lines for a terminal."""
    if not listed:
        return "No tool has faults."
    head = ("SCOPE", "NAME", "TOOL", "STATE", "FAULTS", "LAST", "RETRY IN")
    rows = [head, *(_row(one) for one in listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(one: Listed) -> tuple[str, ...]:
    state = "half open, probing" if one.is_probing else one.phase.value.replace("_", " ")
    wait = f"{one.retry_in_s:.0f} s" if one.retry_in_s else "now"
    return (
        one.scope,
        visible_line(one.name, 64),
        visible_line(one.tool, 64),
        state,
        str(one.faults),
        one.last_fault,
        wait,
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
