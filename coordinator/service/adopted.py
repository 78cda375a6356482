"""Let sessions go on that were taken over, also where one cannot begin at once: floor → **adopted** → held.

What keeps one from beginning is most often a full disk, which all servers share: it stays here, and is tried again.
Meanwhile it hears what is wanted of it. One that is cancelled is tried at once, and needs less room.
"""

import asyncio
import contextlib
import logging

from redis.exceptions import RedisError

from coordinator.errors import SandhogError
from coordinator.service.held import Held, Shared
from coordinator.session.takeover import Orphan, adopt

log = logging.getLogger(__name__)

FIRST_S, LAST_S = 1.0, 60.0
"""The pause before it is tried again: twice as long each time."""


async def run_adopted(held: Held, shared: Shared) -> bool:
    """Run a session that was taken over to its end; return whether it has run.

    False: it was another coordinator's in the end, or had ended.
    """
    pause_s = FIRST_S
    while True:
        try:
            if held.is_held_up and not await _is_ours_anew(held, shared):
                return False
            await held.run(shared)
            return True
        except (SandhogError, RedisError, OSError) as exc:
            held.is_held_up = True
            held.entry.facts.last_error = f"It was taken over and cannot go on yet: {exc}"
            extra = {"session_id": held.entry.session_id, "error": str(exc), "again_s": pause_s}
            log.warning("a session that was taken over cannot go on yet", extra=extra)
        had_cancel = held.cancelled.is_set()
        await _pause(held, pause_s)
        pause_s = FIRST_S if held.cancelled.is_set() and not had_cancel else min(2 * pause_s, LAST_S)


async def _pause(held: Held, pause_s: float) -> None:
    """Wait, no longer than until somebody cancels the session."""
    if held.cancelled.is_set():
        await asyncio.sleep(pause_s)
        return
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(held.cancelled.wait(), pause_s)


async def _is_ours_anew(held: Held, shared: Shared) -> bool:
    """Return whether a session is still ours, in a generation in which nothing was written: the last try may have been.

    Raises:
        RedisError: Redis does not answer.
        TranscriptError: it cannot be read.
    """
    adopted = await adopt(Orphan(held.entry.session_id, ""), shared.cluster)
    if adopted is not None:
        held.found = adopted
    return adopted is not None
