"""A session's place on this node: held as long as its box stands, given back while that is ended for idleness.

Coordinators take places, and Redis alone has them: what it lost, or let expire, is written back by whoever has the box.
"""

import logging
import threading
import time
from collections.abc import Callable

import redis

from worker.contract import keys, scripts
from worker.errors import BoxUnavailable, NoPlace
from worker.patience import patiently

log = logging.getLogger(__name__)

WAIT_S = 30.0
"""For a call of a session that has given its place back: whoever sends it takes the place again before, in the line of
all. This is for a place that goes between that and the call."""
POLL_S = 0.2
KEEP = """
-- KEYS: places, then each session. ARGV: node, ttl_s, then the id of each session. Renews their places, also such as
-- are not there any more; one that has its place on another node by now gets none here.
local place_until = tonumber(redis.call('TIME')[1]) + tonumber(ARGV[2])
for i = 2, #KEYS do
  local node = redis.call('HGET', KEYS[i], 'node')
  if not node or node == '' or node == ARGV[1] then redis.call('ZADD', KEYS[1], place_until, ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


class Places:
    """The places of one node, which coordinators take for sessions. Thread-safe."""

    def __init__(self, client: redis.Redis, node: str, places: int) -> None:
        self._redis = client
        self._take = client.register_script(scripts.TAKE)
        self._keep = client.register_script(KEEP)
        self._node = node
        self._key = keys.places(node)
        self._places = places
        self._writing = threading.Lock()
        """Held from a look at the boxes to what is written of them: a place given back meanwhile must not come back."""

    def give_back(self, session: str) -> None:
        """Let others have the session's place, whose box is gone; while Redis is away it is left to expire."""
        with self._writing:
            try:
                self._redis.zrem(self._key, session)
            except redis.RedisError as exc:
                log.warning("a place was not given back", extra={"session_id": session, "error": str(exc)})

    def keep(self, standing: Callable[[], list[str]]) -> None:
        """Write down that the sessions whose boxes stand have their places.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        with self._writing:
            sessions = standing()
            if sessions:
                names = [self._key, *map(keys.session, sessions)]
                self._keep(keys=names, args=[self._node, keys.PLACE_TTL_S, *sessions])

    def take(self, session: str, boxes: Callable[[], int], wait_s: float) -> None:
        """Come back once the session has a place, now or before; one that has none waits a while for one.

        Args:
            session: The session.
            boxes: Tells how many boxes other sessions have here: Redis may have lost their places just now.
            wait_s: How long.

        Raises:
            NoPlace: every place was another session's for so long.
            BoxUnavailable: Redis was away longer than an outage may last.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                if patiently(lambda: self._is_taken(session, boxes())):
                    return
            except redis.RedisError as exc:
                raise BoxUnavailable(f"Redis cannot be asked for a place for the sandbox: {exc}") from exc
            if time.monotonic() >= deadline:
                raise NoPlace
            time.sleep(POLL_S)

    def _is_taken(self, session: str, boxes: int) -> bool:
        limit = self._places if boxes < self._places else 0
        return bool(self._take(keys=[self._key], args=[limit, keys.PLACE_TTL_S, session]))
