"""Whether a session is still this node's, as Redis tells it: asked before a box that stood still goes on."""

import logging

import redis

from sandbox.heart import Standing
from sandbox.record import BoxRecord
from worker.contract import keys

log = logging.getLogger(__name__)


class Owners:
    """Compares what a box's record says with the session's generation and node. Thread-safe."""

    def __init__(self, client: redis.Redis, node: str) -> None:
        self._redis = client
        self._node = node

    def __call__(self, record: BoxRecord) -> Standing:
        """Return whether the box may go on. What Redis does not say proves nothing: it may have lost it."""
        if not record.session:
            return Standing.OURS
        try:
            found = self._redis.hmget(keys.session(record.session), ["generation", "node"])
        except redis.RedisError as exc:
            log.info("the owner of a box is not known now", extra={"session_id": record.session, "error": str(exc)})
            return Standing.UNKNOWN
        generation, node = (value.decode() if isinstance(value, bytes) else value for value in found)
        if generation is None or not generation.isdigit() or int(generation) < record.generation:
            return Standing.UNKNOWN
        if int(generation) > record.generation or (node and node != self._node):
            return Standing.LOST
        return Standing.OURS
