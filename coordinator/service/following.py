"""Watch a session as it goes: journal, entry → **following** → SSE, waiting requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from coordinator.service.entries import Entry, Follower
from coordinator.service.journal import POLL_S, EventId, Journal, Line
from coordinator.session.step_events import TextDelta


async def follow(
    entry: Entry, after: EventId, is_over: Callable[[], bool], directory: Path | None = None
) -> AsyncIterator[Line | TextDelta | None]:
    """Yield a session's kept events from one on, with pieces of text between them as they come.

    None comes at a pause, and where something happened of which nothing is kept here: a sub-agent did it.

    Args:
        entry: The session.
        after: The last event that the reader has.
        is_over: Whether nothing more will come; what was kept by then is still yielded.
        directory: Of a sub-agent of it whose events are wanted instead.
    """
    follower = Follower()
    entry.followers.add(follower)
    journal = Journal(directory or entry.directory, after)
    try:
        while True:
            follower.wake.clear()
            while not follower.deltas.empty():
                yield follower.deltas.get_nowait()
            # Asked before the reading: what was kept before the end is read below.
            ends = is_over()
            lines: list[Line] = []
            if follower.is_behind or ends or not entry.is_ours:
                follower.is_behind = False
                lines = await asyncio.to_thread(_read_on, journal, entry)
            for line in lines:
                yield line
            follower.is_behind |= bool(lines)
            if not lines and ends:
                return
            if not lines:
                await _woken(follower.wake)
                yield None
    finally:
        entry.followers.discard(follower)


async def wait_for(entry: Entry, has_come: Callable[[], bool], within_s: float) -> bool:
    """Return once something has come true of a session or the time is over; whether it has."""
    follower = Follower()
    entry.followers.add(follower)
    try:
        async with asyncio.timeout(within_s):
            while not has_come():
                follower.wake.clear()
                if not await _woken(follower.wake) and not entry.is_ours:
                    await asyncio.to_thread(entry.refresh)
    except TimeoutError:
        return False
    finally:
        entry.followers.discard(follower)
    return True


def _read_on(journal: Journal, entry: Entry) -> list[Line]:
    entry.refresh()
    return journal.read()


async def _woken(wake: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(wake.wait(), POLL_S)
    except TimeoutError:
        return False
    return True
