"""The circuit breaker's shared state: its rules, its two transitions in Lua, and how it is looked at.

One record a tool and scope. The scope is a session (faults of the tool and of what is below it) or a node (faults of
the node alone, counted once a session in a row, so that one session cannot take a tool from its neighbours).

CLOSED → OPEN after so many faults in a row → HALF_OPEN by the clock alone → one probe → CLOSED, or OPEN again.
Looking is a plain read: which phase a record is in follows from its times, and only the two scripts write.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

RECORD_TTL_MS = 3_600_000
"""A record goes so long after its last change, or after the end of its cool-down."""
PROBE_GRACE_S = 30.0
"""A probe that has not answered so long after its tool's own limit is given up, and another one let through."""


class BreakerRule(BaseModel):
    """When a tool is switched off, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    faults: int = Field(default=3, ge=1)
    """So many faults in a row switch it off."""
    recovery_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds until one call may try it again."""
    counts_as_fault: tuple[str, ...] | None = None
    """Error codes that count; None: TIMEOUT, BOX_LOST and INTERNAL_ERROR. Without TIMEOUT a command that reaches the
    limit that the model itself set is no fault."""


class BreakerSettings(BaseModel):
    """The rules of all tools."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    default: BreakerRule = BreakerRule()
    """For every tool that is not named below."""
    tools: Mapping[str, BreakerRule] = {}
    """By the tool's name; replaces the default as a whole."""

    def rule(self, tool: str) -> BreakerRule:
        """Return the rule of a tool."""
        return self.tools.get(tool, self.default)


class Ending(StrEnum):
    """What a call's end says about its tool."""

    SUCCESS = "success"
    """It works: the count starts over."""
    NEUTRAL = "neutral"
    """Nothing, such as a mistake of the model's; but a probe that ends so has found the tool working."""
    FAULT = "fault"


NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
"""Every script's clock, in milliseconds."""

_RECORD = """
local tool, token, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local function load(key)
  local raw = redis.call('HGET', key, tool)
  local record = raw and cjson.decode(raw)
  if record and record.expires > now then return record end
  return {faults = 0, open_until = 0, probe = '', probe_until = 0, last = '', why = '', by = {}, expires = 0}
end
local function keep(key, record)
  record.expires = math.max(record.open_until, record.probe_until, now) + ttl_ms
  redis.call('HSET', key, tool, cjson.encode(record))
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), record.expires - now))
end
"""

ADMIT = (
    NOW
    + _RECORD
    + """
-- KEYS: breakers of a session, of its node. ARGV: tool, token (the call's key), record ttl_ms, probe_ms.
-- Returns {0}: the call may run, being the probe of each breaker that is half open; asked again with the same token
-- the same. Or {place of the key that refuses, ms until it may let a call through, why it opened, faults}.
local half_open = {}
for place, key in ipairs(KEYS) do
  local record = load(key)
  if record.open_until > 0 then
    if now < record.open_until then return {place, record.open_until - now, record.why, record.faults} end
    if record.probe ~= '' and record.probe ~= token and now < record.probe_until then
      return {place, record.probe_until - now, record.why, record.faults}
    end
    half_open[key] = record
  end
end
for key, record in pairs(half_open) do
  record.probe, record.probe_until = token, now + tonumber(ARGV[4])
  keep(key, record)
end
return {0}
"""
)

REPORT = (
    NOW
    + _RECORD
    + """
-- KEYS: breakers of a session, of its node. ARGV: tool, token, record ttl_ms, session, faults that open,
-- recovery_ms, why, the ending for each key.
-- Returns for each key {faults in a row, 1 if it is open}. The same report twice in a row counts once.
local out = {}
for place, key in ipairs(KEYS) do
  local record, ending = load(key), ARGV[7 + place]
  if record.last == token then
    -- Told before.
  elseif record.open_until > 0 then
    -- Open or half open: only the probe decides; whatever ends late says nothing new.
    if record.probe == token then
      if ending == 'fault' then
        record.faults, record.last, record.why = record.faults + 1, token, ARGV[7]
        record.open_until, record.probe, record.probe_until = now + tonumber(ARGV[6]), '', 0
        keep(key, record)
      else
        redis.call('HDEL', key, tool)
        record = {faults = 0, open_until = 0}
      end
    end
  elseif ending == 'fault' then
    if place == 1 or not record.by[ARGV[4]] then
      if place == 2 then record.by[ARGV[4]] = true end
      record.faults, record.last, record.why = record.faults + 1, token, ARGV[7]
      if record.faults >= tonumber(ARGV[5]) then record.open_until = now + tonumber(ARGV[6]) end
      keep(key, record)
    end
  elseif ending == 'success' then
    redis.call('HDEL', key, tool)
    record = {faults = 0, open_until = 0}
  end
  out[place] = {record.faults, now < record.open_until and 1 or 0}
end
return out
"""
)


class Phase(StrEnum):
    """What a breaker does with a call."""

    CLOSED = "closed"
    """Lets it through."""
    OPEN = "open"
    """Refuses it."""
    HALF_OPEN = "half_open"
    """Lets one through, the probe, and refuses others while that runs."""


class BreakerView(NamedTuple):
    """One record as it is now."""

    tool: str
    phase: Phase
    faults: int
    """In a row."""
    why: str
    """Error code of the last fault; "" for none."""
    retry_in_s: float
    """Seconds until a call may try the tool; 0 when one may now."""
    is_probing: bool
    """Half open, and its one call is under way."""


def views(records: Mapping[bytes | str, bytes | str], now_ms: int) -> list[BreakerView]:
    """Return the breakers of one scope, by tool, from its hash; such as have nothing to tell are left out."""
    seen = [_view(_text(tool), json.loads(raw), now_ms) for tool, raw in records.items()]
    return sorted(view for view in seen if view is not None)


def _view(tool: str, record: Mapping[str, int | str], now_ms: int) -> BreakerView | None:
    if int(record["expires"]) <= now_ms:
        return None
    faults, why, open_until = int(record["faults"]), str(record["why"]), int(record["open_until"])
    if open_until == 0:
        return BreakerView(tool, Phase.CLOSED, faults, why, 0.0, False)
    if now_ms < open_until:
        return BreakerView(tool, Phase.OPEN, faults, why, (open_until - now_ms) / 1000, False)
    is_probing = record["probe"] != "" and now_ms < int(record["probe_until"])
    retry_in_s = (int(record["probe_until"]) - now_ms) / 1000 if is_probing else 0.0
    return BreakerView(tool, Phase.HALF_OPEN, faults, why, retry_in_s, is_probing)


def now_ms(time: tuple[int, int]) -> int:
    """Return Redis' answer to TIME in milliseconds."""
    seconds, microseconds = time
    return seconds * 1000 + microseconds // 1000


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
