"""Ending tasks for certain."""

import asyncio
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


async def set_with(event: asyncio.Event, *others: asyncio.Event) -> None:
    """Set an event as soon as one of the others is set; until then, wait."""
    waiting = [asyncio.create_task(other.wait()) for other in others]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        event.set()
    finally:
        await end(*waiting)
