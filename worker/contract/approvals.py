"""Approvals as they lie in Redis: a request with a deadline, and the first answer that comes, from wherever.

A request stands at session, step and index; the digest says for which call. A coordinator that takes a session over
finds it there, with its answer or the time that is left. Time is Redis' own.
"""

from enum import StrEnum
from typing import Literal

from worker.contract import keys
from worker.contract.orders import Contract

KEPT_S = 600
"""A request stays so long behind its deadline, so that late answers can be told why they are too late."""


class ApprovalRequest(Contract):
    """What a human is asked."""

    session: str
    step: int
    index: int
    """The call's place in the reply, from 0."""
    tool: str
    digest: str
    """Hash of tool and arguments."""
    text: str
    """What would run, whole."""
    reason: str
    """Why it is asked."""
    part: tuple[int, int] | None = None
    """Where in the text, in characters, stands what decided."""
    lasting: list[list[str]] | None = None
    """The commands, in words, that a yes for the whole session would allow; None: only the very same call."""
    principal: str = ""
    """Who the session acts for."""
    agent: str = ""
    """The sub-agent that asks, by what it is to do; "" for the session itself."""

    @property
    def name(self) -> str:
        """What people call it by: `3.0` is the first call of step 3."""
        return f"{self.step}.{self.index}"


class ApprovalAnswer(Contract):
    """What somebody answered."""

    answer_id: str
    """Tells this answer from all others."""
    decision: Literal["allow", "deny"]
    by: str
    """Who or what decided, for the transcript."""
    note: str = ""
    """Said to the model with a no."""
    is_lasting: bool = False
    """A yes for the whole session."""


class Taken(StrEnum):
    """What became of an answer."""

    TAKEN = "taken"
    """It is the one that counts."""
    ANSWERED = "answered"
    """Another one came first."""
    LATE = "late"
    """The deadline has passed."""
    GONE = "gone"
    """Nobody asks."""


def asker_of(session: str, agent: str) -> str:
    """Return the id under which a session asks, or a sub-agent of it by its name, such as `1-2-0`."""
    return f"{session}{keys.CHILD_MARK}{agent}" if agent else session


def split_asker(asker: str) -> tuple[str, str]:
    """Return the session that an asker belongs to, and the sub-agent's name in it; "" for the session itself."""
    session, _, agent = asker.partition(keys.CHILD_MARK)
    return session, agent


def is_within(asker: str, session: str) -> bool:
    """Whether an asker is a session, or a sub-agent below it."""
    return asker == session or asker.startswith(f"{session}{keys.CHILD_MARK}")


def name_below(session: str, request: ApprovalRequest) -> str:
    """Return what a request is called in a session's tree: `3.0`, or `1-2-0.3.0` where sub-agent 1-2-0 asks."""
    agent = request.session.removeprefix(session).removeprefix(keys.CHILD_MARK)
    return f"{agent}.{request.name}" if agent else request.name


def named_below(session: str, name: str) -> tuple[str, str]:
    """Return who asks, and the name of the request there, of a name that `name_below` gave."""
    above, _, index = name.rpartition(".")
    agent, _, step = above.rpartition(".")
    return asker_of(session, agent), f"{step}.{index}"


ASK_APPROVAL = """
-- KEYS: record, waiting. ARGV: digest, request, time_ms, kept_ms, member. Returns {ms left, answer or ''}.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local r = redis.call('HMGET', KEYS[1], 'digest', 'deadline', 'answer', 'closed')
if r[1] == ARGV[1] and not r[4] then
  return {math.max(0, tonumber(r[2]) - now), r[3] or ''}
end
local deadline = now + tonumber(ARGV[3])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'request', ARGV[2], 'asked', now, 'deadline', deadline)
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[3]) + tonumber(ARGV[4]))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], deadline, ARGV[5])
redis.call('EXPIRE', KEYS[2], 86400)
return {tonumber(ARGV[3]), ''}
"""

ANSWER_APPROVAL = """
-- KEYS: record, waiting. ARGV: answer, member, '1' for an answer that no deadline stops. Returns {verdict, the answer}.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local r = redis.call('HMGET', KEYS[1], 'deadline', 'answer')
if not r[1] then return {'gone', ''} end
if r[2] then return {'answered', r[2]} end
if now >= tonumber(r[1]) and ARGV[3] ~= '1' then return {'late', ''} end
redis.call('HSET', KEYS[1], 'answer', ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[2])
return {'taken', ARGV[1]}
"""

CLOSE_APPROVAL = """
-- KEYS: record. ARGV: kept_ms. Its answer is in the transcript: the same call at the same place is asked anew.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'closed', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
