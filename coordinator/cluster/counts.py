"""How many sessions a principal has, and has made within an hour, by all servers: quotas → **counts** → Redis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from worker.contract import keys

if TYPE_CHECKING:
    # Who only passes the parts of a cluster on needs no Redis.
    from redis.asyncio import Redis

HOUR_S = 3600
LIVE_TTL_S = keys.OUTAGE_S + 60
"""A session that no server has counted anew for so long is over: longer than an outage of Redis, in which none can."""

_TAKE = """
-- KEYS: created (by time), live (by expiry). ARGV: session, most created in an hour and most live ("" for any), hour_s,
-- live_ttl_s. Returns {0, counted as created now, as live now}, or {which one is used up (1 created, 2 live), seconds
-- until it may not be, 0}.
local session, clock = ARGV[1], redis.call('TIME')
local now, hour_s = tonumber(clock[1]) + tonumber(clock[2]) / 1000000, tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - hour_s)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local is_created = ARGV[2] == '' or redis.call('ZSCORE', KEYS[1], session)
local is_live = ARGV[3] == '' or redis.call('ZSCORE', KEYS[2], session)
local over = not is_created and redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2]) or -1
if over >= 0 then
  local last = redis.call('ZRANGE', KEYS[1], over, over, 'WITHSCORES')
  return {1, math.ceil(last[2] + hour_s - now), 0}
end
if not is_live and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return {2, 10, 0} end
if not is_created then
  redis.call('ZADD', KEYS[1], now, session)
  redis.call('EXPIRE', KEYS[1], hour_s)
end
if not is_live then
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[5]), session)
  redis.call('EXPIRE', KEYS[2], ARGV[5])
end
return {0, is_created and 0 or 1, is_live and 0 or 1}
"""

_RENEW = """
-- KEYS: live. ARGV: live_ttl_s, then sessions.
local now = tonumber(redis.call('TIME')[1])
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[at]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""


@dataclass(frozen=True)
class Taken:
    """What came of asking for room."""

    used_up: Literal["", "created", "live"]
    """The bound that the session would go beyond; "" where it is counted."""
    ask_again_s: int = 0
    counted_in: tuple[str, ...] = ()
    """Where it was not counted before."""


class Counts:
    """The counts as one server uses them; each question may be repeated."""

    def __init__(self, client: "Redis") -> None:
        self._redis = client
        self._take = client.register_script(_TAKE)
        self._renew = client.register_script(_RENEW)

    async def take(self, principal: str, session: str, *, most_created: int | None, most_live: int | None) -> Taken:
        """Count a session if it goes beyond no bound; one that is counted stays so.

        Args:
            principal: Whose it is.
            session: Its id.
            most_created: In an hour; None counts nothing.
            most_live: At once; None counts nothing.
        """
        bounds: list[str | int] = ["" if most is None else most for most in (most_created, most_live)]
        arguments: list[str | int] = [session, *bounds, HOUR_S, LIVE_TTL_S]
        names = [keys.created(principal), keys.live(principal)]
        used_up, *said = [int(one) for one in await self._take(keys=names, args=arguments)]
        if used_up:
            return Taken("created" if used_up == 1 else "live", max(1, said[0]))
        return Taken("", counted_in=tuple(name for name, is_new in zip(names, said, strict=True) if is_new))

    async def renew(self, principal: str, sessions: Sequence[str]) -> None:
        """Say that sessions still run or wait, whoever counted them first."""
        await self._renew(keys=[keys.live(principal)], args=[LIVE_TTL_S, *sessions])

    async def ended(self, principal: str, session: str) -> None:
        """Count a session as live no more; that it was created stays counted."""
        await self._redis.zrem(keys.live(principal), session)

    async def undo(self, taken: Taken, session: str) -> None:
        """Count a session no more that could not begin; what another server has counted of it stays."""
        async with self._redis.pipeline(transaction=True) as pipe:
            for name in taken.counted_in:
                pipe.zrem(name, session)
            await pipe.execute()
