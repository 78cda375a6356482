"""Ending tasks for certain."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

_T = TypeVar("_T")

AGAIN_S = 0.05


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and come back when they have ended, whatever they end with.

    Once is not enough: `asyncio.wait_for`, which the Redis client reads with, swallows a cancellation that comes in the
    moment in which its work is done (Python before 3.12).
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    # Each exception is looked at, so that none is reported as never retrieved.
    await asyncio.gather(*tasks, return_exceptions=True)


async def first(work: "asyncio.Task[_T]", stop: asyncio.Event) -> _T | None:
    """Return the task's result, or None once stopped; the task has ended then, as when the caller is cancelled."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        stopped.cancel()
        if not work.done():
            await end(work)


async def one_of(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def set_with(event: asyncio.Event, *others: asyncio.Event) -> None:
    """Set an event as soon as one of the others is set; until then, wait."""
    waiting = [asyncio.create_task(other.wait()) for other in others]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        event.set()
    finally:
        await end(*waiting)


@contextlib.asynccontextmanager
async def either(*events: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set within the block as soon as one of these is."""
    joined = asyncio.Event()
    if any(event.is_set() for event in events):
        joined.set()
    setting = asyncio.create_task(set_with(joined, *events))
    try:
        yield joined
    finally:
        await end(setting)
