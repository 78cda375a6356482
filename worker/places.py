"""A session's place on this node, given back while its box is ended for idleness, and taken again for its next call."""

import logging
import time

import redis

from worker.contract import keys, scripts
from worker.patience import patiently

log = logging.getLogger(__name__)

WAIT_S = 30.0
POLL_S = 0.2


class Places:
    """The places of one node, which coordinators take for sessions. Thread-safe."""

    def __init__(self, client: redis.Redis, node: str, places: int) -> None:
        self._redis = client
        self._take = client.register_script(scripts.TAKE)
        self._key = keys.places(node)
        self._places = places

    def give_back(self, session: str) -> None:
        """Let others have the session's place; while Redis is away the place is left to expire."""
        try:
            self._redis.zrem(self._key, session)
        except redis.RedisError as exc:
            log.warning("a place was not given back", extra={"session_id": session, "error": str(exc)})

    def take_again(self, session: str, wait_s: float = WAIT_S) -> bool:
        """Return whether the session has a place again; waits a while for one.

        Raises:
            redis.RedisError: Redis was away longer than an outage may last.
        """
        deadline = time.monotonic() + wait_s
        while True:
            got = patiently(lambda: self._take(keys=[self._key], args=[self._places, keys.PLACE_TTL_S, session]))
            if got or time.monotonic() > deadline:
                return bool(got)
            time.sleep(POLL_S)
