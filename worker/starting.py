"""Starting a session's box again when somebody kills it as it starts: boxes → **starting** → engine."""

import logging

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, LossReason
from sandbox.spec import BoxSpec

log = logging.getLogger(__name__)

TRIES = 3


def start(engine: Engine, spec: BoxSpec, session: str, generation: int) -> Box:
    """Return a started box.

    Nothing has run in a box that is killed before it stands, so another may take its place. One that ends by itself
    would do so again.

    Raises:
        SandboxError: it cannot be had.
    """
    for left in reversed(range(TRIES)):
        try:
            return engine.start(spec, session=session, generation=generation)
        except BoxLost as exc:
            if exc.reason is not LossReason.KILLED or not left:
                raise
            log.warning("a box was killed as it started", extra={"session_id": session})
    raise AssertionError
