"""Whose turn it is for a place on a node, in one line for all coordinators: placement → **turns** → Redis.

Each waiting session has a ticket, renewed by whoever waits for it. Tickets are ordered by start-time fair queueing: a
principal's next one comes a share later than its last, and one that comes back after a pause has no credit for it. So
principals take turns by their weights, and of one principal the oldest is first. A ticket is passed by others only for
places that it does not want, and one whose principal has as many places as it may stands aside.

What a principal has is counted anew every second by the coordinators of its sessions: one whose idle box was ended has
no place meanwhile, and a Redis that lost the counts has them again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker.contract import keys
from worker.contract.orders import NodeLife

if TYPE_CHECKING:
    # Who shows a place in the line needs no Redis.
    from redis.asyncio import Redis

TICKET_TTL_S = 15
"""A ticket that nobody renews for so long is no one's."""
AHEAD = 500
"""A ticket behind so many others is not looked at closer."""

_FORGET = """
local function forget(one)
  local held = redis.call('HGET', KEYS[3], one)
  if held then redis.call('ZREM', ARGV[2] .. cjson.decode(held)[1], one) end
  redis.call('HDEL', KEYS[3], one); redis.call('ZREM', KEYS[1], one); redis.call('ZREM', KEYS[2], one)
  if redis.call('HLEN', KEYS[3]) == 0 then redis.call('DEL', KEYS[4]) end
end
"""

TAKE_TURN = (
    """
-- KEYS: waiting (by tag), renewed (by expiry), tickets, tags, holders (session -> principal), the principal's line, its
-- places, then the places of each node. ARGV: session, prefix of lines, principal, weight, most places ("" for any),
-- ticket_ttl_s, place_ttl_s, AHEAD, then of each node: name, limit, rank (the lowest is preferred).
-- Returns {node (from 1; 0 for none), position, tickets, 1 where the principal has as many places as it may}.
"""
    + _FORGET
    + """
local session, principal, now = ARGV[1], ARGV[3], tonumber(redis.call('TIME')[1])
for _, one in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do forget(one) end
local names, limits, ranks, free, wanted, is_any_free = {}, {}, {}, {}, ',', false
local place_until = now + tonumber(ARGV[7])
for at = 1, #KEYS - 7 do
  local places, arg = KEYS[7 + at], 6 + 3 * at
  names[at], ranks[at] = ',' .. ARGV[arg] .. ',', tonumber(ARGV[arg + 2])
  wanted = wanted .. ARGV[arg] .. ','
  redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
  if redis.call('ZSCORE', places, session) then
    redis.call('ZADD', places, place_until, session); forget(session)
    return {at, 0, 0, 0}
  end
  free[at] = tonumber(ARGV[arg + 1]) - redis.call('ZCARD', places)
  is_any_free = is_any_free or free[at] > 0
end
local room = math.huge
if ARGV[5] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', now)
  if not redis.call('ZSCORE', KEYS[7], session) then room = tonumber(ARGV[5]) - redis.call('ZCARD', KEYS[7]) end
end
local tag
if redis.call('HLEN', KEYS[3]) > 0 or not is_any_free or room <= 0 then
  local served, held = tonumber(redis.call('HGET', KEYS[4], '') or '0'), redis.call('HGET', KEYS[3], session)
  tag = held and cjson.decode(held)[2]
  if not tag then
    tag = math.max(served, tonumber(redis.call('HGET', KEYS[4], ':' .. principal) or '0'))
    redis.call('HSET', KEYS[4], ':' .. principal, tag + 1 / tonumber(ARGV[4]))
  end
  redis.call('HSET', KEYS[3], session, cjson.encode({principal, tag, wanted}))
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[6]), session)
  redis.call('ZADD', KEYS[6], tag, session)
  for _, key in ipairs({KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]}) do redis.call('EXPIRE', key, 3600) end
  local of_own = redis.call('ZRANK', KEYS[6], session)
  if of_own >= room then
    redis.call('ZREM', KEYS[1], session)
    return {0, of_own + 1, redis.call('HLEN', KEYS[3]), 1}
  end
  redis.call('ZADD', KEYS[1], tag, session)
  local rank = redis.call('ZRANK', KEYS[1], session)
  if is_any_free and rank > 0 and rank <= tonumber(ARGV[8]) then
    local before = redis.call('ZRANGE', KEYS[1], 0, rank - 1)
    for _, ticket in ipairs(redis.call('HMGET', KEYS[3], unpack(before))) do
      local nodes = ticket and cjson.decode(ticket)[3] or ','
      for at = 1, #names do
        if string.find(nodes, names[at], 1, true) then free[at] = free[at] - 1 end
      end
    end
  end
  if not is_any_free or rank > tonumber(ARGV[8]) then
    return {0, rank + 1, redis.call('HLEN', KEYS[3]), 0}
  end
end
local best = 0
for at = 1, #names do
  local is_better = best == 0 or ranks[at] < ranks[best] or (ranks[at] == ranks[best] and free[at] > free[best])
  if free[at] > 0 and is_better then best = at end
end
if best == 0 then return {0, redis.call('ZRANK', KEYS[1], session) + 1, redis.call('HLEN', KEYS[3]), 0} end
redis.call('ZADD', KEYS[7 + best], place_until, session)
redis.call('EXPIRE', KEYS[7 + best], ARGV[7])
if ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[7], place_until, session); redis.call('EXPIRE', KEYS[7], ARGV[7])
  redis.call('HSET', KEYS[5], session, principal); redis.call('EXPIRE', KEYS[5], ARGV[7])
end
if tag then
  redis.call('HSET', KEYS[4], '', math.max(tag, tonumber(redis.call('HGET', KEYS[4], '') or '0')))
  forget(session)
end
return {best, 0, 0, 0}
"""
)

LEAVE = (
    """
-- KEYS: waiting, renewed, tickets, tags, holders. ARGV: session, prefix of lines, prefix of principals' places.
"""
    + _FORGET
    + """
forget(ARGV[1])
local principal = redis.call('HGET', KEYS[5], ARGV[1])
if principal then
  redis.call('ZREM', ARGV[3] .. principal, ARGV[1])
  redis.call('HDEL', KEYS[5], ARGV[1])
end
"""
)

COUNT = """
-- KEYS: holders, the principal's places, then the places of each session's node. ARGV: principal, place_ttl_s, then
-- each session. Counts those that have their place, whatever the ceiling is, and no other of them.
local now = tonumber(redis.call('TIME')[1])
for at = 3, #KEYS do
  local session, expiry = ARGV[at], redis.call('ZSCORE', KEYS[at], ARGV[at])
  if expiry and tonumber(expiry) > now then
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), session); redis.call('HSET', KEYS[1], session, ARGV[1])
  else
    redis.call('ZREM', KEYS[2], session); redis.call('HDEL', KEYS[1], session)
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[2]); redis.call('EXPIRE', KEYS[2], ARGV[2])
"""


@dataclass(frozen=True)
class PlaceWanted:
    """What a session asks of its place."""

    principal: str = "local"
    image: str = ""
    """A node that has it, or a warm box of it, is preferred."""
    profile: str = ""
    """A node that knows it is taken, where one says so."""
    pins: dict[str, str] = field(default_factory=dict)
    """Labels that the node must have."""
    most: int | None = None
    """Places that the principal may have at once; further sessions of it wait."""
    weight: int = 1
    """The principal's share of the turns, against that of others."""
    bound_to: NodeLife | None = None
    """Its directory is on this node's machine, and nowhere else; None for a session that may be on any."""
    is_nowhere_else: bool = False
    """No other node of that machine will do."""

    def suits(self, life: NodeLife) -> bool:
        """Whether a node has the labels, and the directory."""
        return self.pins.items() <= life.labels.items() and self.is_bound_to(life)

    def is_bound_to(self, life: NodeLife) -> bool:
        """Whether the session's directory is on a node's machine."""
        if self.bound_to is None or self.bound_to.node == life.node:
            return True
        return self.bound_to.host == life.host and not self.is_nowhere_else

    def rank(self, life: NodeLife, home: str | None) -> int:
        """Return how much a node is preferred: the lower the more."""
        if life.node == home:
            return 0
        return 1 if self.image in life.warm else 2 if self.image in life.images else 3


@dataclass(frozen=True)
class Turn:
    """What a session was told that asked for a place."""

    node: NodeLife | None
    """Where it has one now."""
    position: int = 0
    """Where it stands in the line, from 1."""
    tickets: int = 0
    """All that wait."""
    is_at_ceiling: bool = False
    """Its principal has as many places as it may; the position is among its own sessions then."""

    @property
    def words(self) -> str:
        """Say it to people."""
        if self.is_at_ceiling:
            return f"Waiting for a place: number {self.position} of this principal, which has as many as it may."
        return f"Waiting for a place: number {self.position} of {self.tickets}."


class Turns:
    """The line as one coordinator uses it."""

    def __init__(self, client: "Redis", ticket_ttl_s: int = TICKET_TTL_S) -> None:
        self._redis = client
        self._ticket_ttl_s = ticket_ttl_s
        self._take = client.register_script(TAKE_TURN)
        self._leave = client.register_script(LEAVE)
        self._count = client.register_script(COUNT)
        self._held: dict[str, tuple[str, str]] = {}
        """Of each session here whose principal has a ceiling: the principal, and the node where it had a place last."""

    async def take(self, session: str, wanted: PlaceWanted, nodes: Sequence[tuple[NodeLife, int]]) -> Turn:
        """Take a place on one of these nodes, each with its rank, if it is the session's turn; else stand in the line.

        A session that has a place on one of them keeps it.
        """
        principal = wanted.principal
        names = [*_LINE, f"{keys.LINE_OF}{principal}", f"{keys.PLACES_OF}{principal}"]
        most: str | int = "" if wanted.most is None else wanted.most
        arguments: list[str | int] = [session, keys.LINE_OF, principal, wanted.weight, most]
        arguments += [self._ticket_ttl_s, keys.PLACE_TTL_S, AHEAD]
        for life, rank in nodes:
            names.append(keys.places(life.node))
            arguments += [life.node, life.places, rank]
        at, position, tickets, is_at_ceiling = await self._take(keys=names, args=arguments)
        node = nodes[int(at) - 1][0] if at else None
        if node is not None and wanted.most is not None:
            self._held[session] = (principal, node.node)
        return Turn(node, int(position), int(tickets), bool(is_at_ceiling))

    def let_go(self, session: str) -> None:
        """See no more to what a session counts for: it has ended, or another coordinator has it."""
        self._held.pop(session, None)

    async def count(self) -> None:
        """Let those sessions here count for their principal's ceiling that have their places now, and no others."""
        held: dict[str, dict[str, str]] = defaultdict(dict)
        for session, (principal, node) in self._held.items():
            held[principal][session] = keys.places(node)
        for principal, places in held.items():
            names = [keys.PLACE_HOLDERS, f"{keys.PLACES_OF}{principal}", *places.values()]
            await self._count(keys=names, args=[principal, keys.PLACE_TTL_S, *places])

    async def leave(self, session: str) -> None:
        """Wait no more, and count no more as one of the principal's places. Idempotent."""
        await self._leave(keys=_LINE, args=[session, keys.LINE_OF, keys.PLACES_OF])

    async def look(self, sessions: Mapping[str, str]) -> dict[str, Turn]:
        """Return where sessions, each with its principal, stand in the line; those that wait for no place are left out.

        Whoever waits asks for its turn itself; this only looks.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hlen(keys.LINE_TICKETS)
            for session, principal in sessions.items():
                pipe.zrank(keys.LINE_WAITING, session)
                pipe.zrank(f"{keys.LINE_OF}{principal}", session)
            tickets, *ranks = await pipe.execute()
        found = {}
        for session, rank, of_own in zip(sessions, ranks[::2], ranks[1::2], strict=True):
            if rank is not None:
                found[session] = Turn(None, int(rank) + 1, int(tickets))
            elif of_own is not None:
                found[session] = Turn(None, int(of_own) + 1, int(tickets), is_at_ceiling=True)
        return found


_LINE = [keys.LINE_WAITING, keys.LINE_RENEWED, keys.LINE_TICKETS, keys.LINE_TAGS, keys.PLACE_HOLDERS]
