"""Starting a session's box again when its start was no fault of its own: boxes → **starting** → engine."""

import logging
import time
from collections.abc import Callable

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, EngineAway, EngineFailing, LossReason
from sandbox.spec import BoxSpec

log = logging.getLogger(__name__)

TRIES = 3
AWAY_S = 30.0
"""How long an engine that is being restarted is waited for."""
FAILING_S = 5.0
"""How long an engine is asked again that fails by itself: one that is ending does, until nobody listens any more."""
PAUSE_S = 0.25


def start(
    engine: Engine,
    spec: BoxSpec,
    session: str,
    generation: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Box:
    """Return a started box.

    Nothing has run in a box that is killed before it stands, so another may take its place. One that ends by itself
    would do so again. An engine that is away for a moment, with all its boxes, is waited for, and so is one that fails
    before it goes.

    Raises:
        SandboxError: it cannot be had.
    """
    left, deadline = TRIES, clock() + AWAY_S
    failing_until: float | None = None
    while True:
        try:
            return engine.start(spec, session=session, generation=generation)
        except BoxLost as exc:
            left -= 1
            if exc.reason is not LossReason.KILLED or not left:
                raise
            log.warning("a box was killed as it started", extra={"session_id": session})
        except EngineAway as exc:
            if clock() > deadline:
                raise
            log.warning("a box waits for the engine", extra={"session_id": session, "error": str(exc)})
            failing_until = None
            sleep(PAUSE_S)
        except EngineFailing as exc:
            failing_until = failing_until or clock() + FAILING_S
            if clock() > failing_until:
                raise
            log.warning("the engine fails to start a box", extra={"session_id": session, "error": str(exc)})
            sleep(PAUSE_S)
