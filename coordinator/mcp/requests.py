"""Which call a client's request stands for: server → **requests** → served_box.

A client that repeats a request, because its first answer was lost on the way, gets the first one's answer: nothing runs
twice. What makes a request the same is its id on its connection, with the same tool and arguments.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.mcp.served_box import Answer, ServedBox
from worker.contract.orders import call_digest

KEPT = 256
"""Answers that can be asked for again."""


class OtherRequest(Exception):
    """The id is that of another request."""


@dataclass(eq=False)
class Work:
    """One call and those who wait for it."""

    digest: str
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    task: "asyncio.Task[Answer] | None" = None


class Requests:
    """The calls of one box, by request."""

    def __init__(self, box: ServedBox) -> None:
        self._box = box
        self._works: OrderedDict[str, Work] = OrderedDict()

    async def answer(self, key: str | None, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """Return the answer of a request's call, begun now or when the request came first.

        Cancelled while nobody else waits for it, it cancels the call.

        Args:
            key: What names the request; None for one that cannot be repeated.
            tool: The tool's name.
            arguments: As the client sent them.

        Raises:
            OtherRequest: the key stands for another call.
        """
        work = self._work(key, tool, arguments)
        assert work.task is not None
        work.waiting += 1
        try:
            return await asyncio.shield(work.task)
        except asyncio.CancelledError:
            if work.waiting == 1:
                work.cancelled.set()
            raise
        finally:
            work.waiting -= 1

    def _work(self, key: str | None, tool: str, arguments: Mapping[str, Any]) -> Work:
        digest = call_digest(tool, dict(arguments))
        known = self._works.get(key) if key is not None else None
        if known is not None:
            if known.digest != digest:
                raise OtherRequest(f"the request {key} was another call before; take a new id")
            return known
        work = Work(digest)
        work.task = self._box.start(tool, arguments, work.cancelled)
        if key is not None:
            self._works[key] = work
            self._forget()
        return work

    def _forget(self) -> None:
        for key in list(self._works)[: max(0, len(self._works) - KEPT)]:
            task = self._works[key].task
            if task is not None and task.done():
                del self._works[key]
