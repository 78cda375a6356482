"""The queues of nodes as they are in Redis: lists that go by themselves, and nothing beside them.

A node that is killed and never comes back removes nothing, and what it was sent last is read by nobody. Kombu would
also keep tables of which queue belongs to which exchange; but for answers to control commands none is needed here:
orders name their queue, and what all nodes hear is published.
"""

from functools import cached_property
from typing import Any

from kombu.transport import redis
from kombu.utils.json import dumps

from worker.contract import keys

ANSWERS = "reply.celery.pidbox"
"""Where nodes send what they are asked by control commands, such as `celery inspect ping`: its table is needed to find
whoever asked, and expires as well."""
PUSH = """
-- KEYS: queue. ARGV: message, ttl_s.
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


class Channel(redis.Channel):
    """Kombu's, but for what it leaves in Redis."""

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self._push(keys=[queue], args=[dumps(message), keys.QUEUE_TTL_S])  # type: ignore[no-untyped-call]

    @cached_property
    def _push(self) -> Any:
        # With one client for all messages: kombu makes one for each, a fifth of what sending costs.
        return self._create_client().register_script(PUSH)  # type: ignore[no-untyped-call]

    def _queue_bind(self, exchange: str, routing_key: str | None, pattern: str | None, queue: str) -> None:
        if self.typeof(exchange).type == "fanout":  # type: ignore[no-untyped-call]
            self._fanout_queues[queue] = (exchange, (routing_key or "").replace("#", "*"))
        if exchange == ANSWERS:
            table = self.keyprefix_queue % (exchange,)
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                pipe.sadd(table, self.sep.join((routing_key or "", pattern or "", queue)))
                pipe.expire(table, keys.QUEUE_TTL_S)
                pipe.execute()

    def maybe_refresh_binding_expiry(self) -> None:
        """There are no tables to refresh."""


class Transport(redis.Transport):
    """Makes such channels."""

    Channel = Channel
