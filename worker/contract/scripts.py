"""The Lua scripts: every change of shared state that must not be torn in two.

Each script is one atomic step in Redis; its arguments are named beside it. Time is Redis' own (`TIME`), so that no
two machines' clocks are compared.
"""

from enum import StrEnum

from worker.contract import keys

FENCED = "FENCED"
"""Value of a claim that no worker may take any more."""

CLAIM = """
-- KEYS: claim, session, its breakers, its node's breakers, the box's session. ARGV: token, generation, step, ttl_s,
-- tool, the box's generation. The last of each only for a sub-agent: the session above it must not be another
-- coordinator's by now, nor cancelled. One delivery's own repeated claim is granted again.
-- What is granted says whether a breaker must be asked: as good as no call meets one.
local function granted()
  for place = 3, math.min(#KEYS, 4) do
    if redis.call('HEXISTS', KEYS[place], ARGV[5]) == 1 then return 'granted_marked' end
  end
  return 'granted'
end
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return granted() end
if held == 'FENCED' then return 'fenced' end
if held then return 'taken' end
local s = redis.call('HMGET', KEYS[2], 'generation', 'step', 'cancelled')
if not s[1] or tonumber(s[1]) ~= tonumber(ARGV[2]) then return 'stale_generation' end
if s[2] and tonumber(ARGV[3]) < tonumber(s[2]) then return 'stale_step' end
if s[3] == '1' then return 'cancelled' end
if KEYS[5] then
  local above = redis.call('HMGET', KEYS[5], 'generation', 'cancelled')
  if above[1] and tonumber(above[1]) ~= tonumber(ARGV[6]) then return 'stale_generation' end
  if above[2] == '1' then return 'cancelled' end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[4])
return granted()
"""

FENCE = """
-- KEYS: claims. ARGV: ttl_s. Returns for each '1' (fenced now or before: it never runs) or '0' (a worker started it).
local out = {}
for i, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if not held then
    redis.call('SET', key, 'FENCED', 'EX', ARGV[1]); out[i] = 1
  elseif held == 'FENCED' then out[i] = 1
  else out[i] = 0 end
end
return out
"""

CANCEL = """
-- KEYS: session, claims. ARGV: generation, ttl_s. Lets no call of the session's generation start from now on, then
-- fences these; returns for each '1' (fenced: it never runs) or '0' (a worker started it).
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then redis.call('HSET', KEYS[1], 'cancelled', '1') end
local out = {}
for i = 2, #KEYS do
  local held = redis.call('GET', KEYS[i])
  if not held then redis.call('SET', KEYS[i], 'FENCED', 'EX', ARGV[2]) end
  out[i - 1] = (not held or held == 'FENCED') and 1 or 0
end
return out
"""

OPEN_SESSION = """
-- KEYS: session. ARGV: least generation, ttl_s, owner ("" for none). Returns the new generation, above all that were.
-- Asked again after its answer was lost it gives the owner the same one: in a generation that is not below the least
-- nothing was written.
local held = redis.call('HMGET', KEYS[1], 'generation', 'owner')
local g = tonumber(held[1] or '0')
if ARGV[3] and ARGV[3] ~= '' and held[2] == ARGV[3] and g >= tonumber(ARGV[1]) then return g end
g = math.max(g + 1, tonumber(ARGV[1]))
redis.call('HSET', KEYS[1], 'generation', g, 'step', 0, 'owner', ARGV[3] or '')
redis.call('HDEL', KEYS[1], 'cancelled')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return g
"""

ADOPT = """
-- KEYS: session, the dead owner's lease, its sessions, the new owner's. ARGV: owner that died, new owner, session,
-- least generation, ttl_s. Returns the new generation; 0 when it is another's by now, or the owner lives. Asked again
-- after its answer was lost it returns the same: nothing was written in a generation that is not below the least.
local held = redis.call('HMGET', KEYS[1], 'generation', 'owner')
local g = tonumber(held[1] or '0')
if held[2] == ARGV[2] and g >= tonumber(ARGV[4]) then return g end
if held[2] and held[2] ~= ARGV[1] then redis.call('SREM', KEYS[3], ARGV[3]); return 0 end
if ARGV[1] == ARGV[2] or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
if redis.call('SISMEMBER', KEYS[3], ARGV[3]) == 0 then return 0 end
g = math.max(g + 1, tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'generation', g, 'step', 0, 'owner', ARGV[2])
redis.call('HDEL', KEYS[1], 'cancelled')
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('SREM', KEYS[3], ARGV[3])
redis.call('SADD', KEYS[4], ARGV[3])
redis.call('EXPIRE', KEYS[4], ARGV[5])
return g
"""

UNKNOWN = 2
"""What the next two scripts return of a session of which nothing is known."""

OWN = """
-- KEYS: session, the owner's sessions. ARGV: generation, owner, session, ttl_s, '1' to let others adopt it,
-- '1' to begin anew. Writes back who owns the session; returns 1, or 0 when another coordinator has it now, or 2 when
-- nothing is known of it: lost, or ended by a later owner. Then nothing is written, but where it is to begin anew.
local g = redis.call('HGET', KEYS[1], 'generation')
if g and tonumber(g) > tonumber(ARGV[1]) then return 0 end
if not g and ARGV[6] ~= '1' then return 2 end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'owner', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[4])
if ARGV[5] == '1' then
  redis.call('SADD', KEYS[2], ARGV[3])
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
return 1
"""

CLOSE_SESSION = """
-- KEYS: session, what it has seen, its breakers, then the places of each node. ARGV: session, generation ("" for any).
-- Forgets a session that has ended, and gives its places back; not one that has begun in another generation since.
-- Returns 1, or 0.
local g = redis.call('HGET', KEYS[1], 'generation')
if g and ARGV[2] ~= '' and g ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
for i = 4, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
return 1
"""

BEGIN_STEP = """
-- KEYS: session. ARGV: generation, step, ttl_s, '1' to begin anew. Returns 1, or 0 when another coordinator has the
-- session now, or 2 when nothing is known of it: lost, or ended by a later owner. Then nothing is written, but where it
-- is to begin anew. A later step is begun by who knows of the cancel: it was meant for the steps before.
local s = redis.call('HMGET', KEYS[1], 'generation', 'step')
if s[1] and tonumber(s[1]) > tonumber(ARGV[1]) then return 0 end
if not s[1] and ARGV[4] ~= '1' then return 2 end
if s[2] and tonumber(s[2]) < tonumber(ARGV[2]) then redis.call('HDEL', KEYS[1], 'cancelled') end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'step', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

_TAKE = """
-- KEYS: holders. ARGV: limit, ttl_s, holder... Takes as many as fit, in order; a holder already in keeps its seat.
-- Returns how many of the holders, from the first, are in now.
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local free = tonumber(ARGV[1]) - redis.call('ZCARD', KEYS[1])
local got = 0
for i = 3, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    got = got + 1
  elseif free > 0 then
    free = free - 1; got = got + 1
  else break end
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[i])
end
if got > 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return {result}
"""
LIFE = "string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')"
"""Within a script: the id of this life of the Redis process."""

_SINCE = f"""
local since = redis.call('GET', '{keys.COORDINATORS_SINCE}')
if not since then
  since = table.concat(redis.call('TIME'), '.')
  redis.call('SET', '{keys.COORDINATORS_SINCE}', since)
end
local life = {LIFE} .. '/' .. since
"""
"""Begins a script that tells the life of Redis: with the process, or emptied (FLUSHALL), it loses what was claimed."""

NO_PLACE = -1
"""In place of how many were taken: the session has no place on the node."""
TAKE = _TAKE.replace("{result}", "got")
TAKE_IN_LIFE = f"""{_SINCE}
-- As TAKE, with two more keys, the places of the node and who gets no lane any more, and one more argument, the last: a
-- session ("" for none). Takes nothing for one without a place there. Returns how many, or {NO_PLACE} for that, and the
-- life of Redis.
local session = table.remove(ARGV)
if session ~= '' and not redis.call('ZSCORE', KEYS[2], session) then return {{{NO_PLACE}, life}} end
if redis.call('EXISTS', KEYS[3]) == 1 then
  for i = #ARGV, 3, -1 do
    if redis.call('ZSCORE', KEYS[3], ARGV[i]) then table.remove(ARGV, i) end
  end
end
""" + _TAKE.replace("{result}", "{got, life}")
"""What is dispatched next has to know all that, and one question is cheaper than three."""

GIVE = """
-- KEYS: holders, who gets no lane any more. ARGV: ttl_s, how many of the next, from the first, get none from now on,
-- holder... Takes their lanes back; a holder that has none is passed over.
local now, over = tonumber(redis.call('TIME')[1]), tonumber(ARGV[2])
for i = 3, #ARGV do
  redis.call('ZREM', KEYS[1], ARGV[i])
  if i <= 2 + over then redis.call('ZADD', KEYS[2], now + tonumber(ARGV[1]), ARGV[i]) end
end
if over > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  redis.call('EXPIRE', KEYS[2], ARGV[1])
end
"""

RUN_ID = f"""{_SINCE}
-- Returns the id of this life of Redis; the whole of INFO would be parsed by the client.
return life
"""


class ClaimVerdict(StrEnum):
    """What the claim script answered."""

    GRANTED = "granted"
    """And no breaker, of those named, has a record of the tool."""
    GRANTED_MARKED = "granted_marked"
    """And a breaker has one."""
    TAKEN = "taken"
    FENCED = "fenced"
    STALE_GENERATION = "stale_generation"
    STALE_STEP = "stale_step"
    CANCELLED = "cancelled"
