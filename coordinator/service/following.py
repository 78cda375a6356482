"""Watch a session as it goes: journal, entry → **following** → SSE, waiting requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from coordinator.service.entries import Entry, Follower
from coordinator.service.journal import BEGINNING, POLL_S, EventId, Journal, Line, last_id
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from coordinator.session.step_events import TextDelta

SEEN_S = 3.0
"""What another process has kept is seen here by then, also over a network."""
PAUSE_S = 0.25


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


async def demand_reached(entry: Entry, event: EventId) -> None:
    """Return if a session has got as far as an event; what another process has just kept may be seen here later.

    Raises:
        Refused: it has not, so that a reader who believes to have that event would miss others; or the volume cannot
            be read.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + (0.0 if entry.is_ours else SEEN_S)
    while event > (last := await on_volume(last_id, entry.directory)):
        if clock() >= until:
            known = f"its last one is {last}" if last != BEGINNING else "it has none yet"
            words = f"Session {entry.session_id} has no event {event}: {known}."
            raise Refused(Code.INVALID, words, "Give the id that came last on its stream, or none for all of them.")
        await asyncio.sleep(PAUSE_S)


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
