"""Read metadata: which version of a file a session has seen, and which lines of it.

Read, Edit, Write → **metadata** (one Redis hash a session, one field a canonical path) → what Edit and Write may
replace. Everything here is a pure function of a record, or the one script that stores it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from worker.contract.orders import CallKey

MAX_FILES = 200
"""Files that a session's metadata holds; of more, the one longest unused is forgotten and must be read again."""
MAX_RANGES = 100
"""Ranges that a file's coverage holds; of more, the shortest are forgotten."""

Lines = tuple[int, int]
"""First and last line, from 1, both included."""

STORE = """
-- KEYS: a session's read metadata. ARGV: path, the value that was loaded ("" for none), new record, ttl_s, max files.
-- Returns 1, or 0 when somebody else stored meanwhile: load and compute again. A value is '<ms of use> <record>'.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d%06d %s', time[1], time[2], ARGV[3]))
redis.call('EXPIRE', KEYS[1], ARGV[4])
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[5]) then
  local all, oldest, least = redis.call('HGETALL', KEYS[1]), nil, nil
  for at = 1, #all, 2 do
    local used = tonumber(string.match(all[at + 1], '^%d+'))
    if all[at] ~= ARGV[1] and (not least or used < least) then oldest, least = all[at], used end
  end
  redis.call('HDEL', KEYS[1], oldest)
end
return 1
"""


class SeenVersion(BaseModel):
    """What a file was when it was seen, as the guest told it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str
    """Hex digest of the content: two versions with the same one show the same lines."""


class FileSeen(BaseModel):
    """What a session has seen of one file."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    version: SeenVersion
    """Of this version only."""
    whole: bool = False
    """The session made this version itself: nothing of it is unknown to it."""
    total_lines: int = 0
    ranges: tuple[Lines, ...] = ()
    """Lines that were shown in earlier steps, apart and in order."""
    recent: dict[str, tuple[Lines, ...]] = {}
    """Lines that the calls of the newest step showed, by call: these may still be cut by the step's budget."""

    def missing(self) -> tuple[Lines, ...]:
        """Return the lines that were never shown, apart and in order; none when all were."""
        if self.whole:
            return ()
        shown = joined([*self.ranges, *(lines for own in self.recent.values() for lines in own)])
        edges = [(0, 0), *shown, (self.total_lines + 1, self.total_lines + 1)]
        gaps = [(before[1] + 1, after[0] - 1) for before, after in pairwise(edges)]
        return tuple((first, last) for first, last in gaps if first <= last)


def shown(
    before: FileSeen | None, version: SeenVersion, call: CallKey, lines: Sequence[Lines], total_lines: int
) -> FileSeen:
    """Return the record after a call showed these lines of this version; another version starts over."""
    if before is None or before.version.sha256 != version.sha256:
        before = FileSeen(version=version, total_lines=total_lines)
    step = (call.generation, call.step)
    older = [own for name, own in before.recent.items() if _step(name) < step]
    newer = {name: own for name, own in before.recent.items() if _step(name) >= step}
    return before.model_copy(
        update={
            "version": version,
            "total_lines": total_lines,
            "ranges": joined([*before.ranges, *(one for own in older for one in own)]),
            "recent": dict(list({**newer, str(call): joined(lines)}.items())[-MAX_RANGES:]),
        }
    )


def made(version: SeenVersion) -> FileSeen:
    """Return the record after the session itself made this version."""
    return FileSeen(version=version, whole=True)


def narrowed(before: FileSeen | None, call: CallKey, left: Sequence[Lines]) -> FileSeen | None:
    """Return the record after a budget left only these lines of what the call showed; None when nothing changes."""
    own = before.recent.get(str(call)) if before is not None else None
    if before is None or own is None:
        return None
    kept = _common(own, joined(left))
    return None if kept == own else before.model_copy(update={"recent": {**before.recent, str(call): kept}})


def joined(lines: Iterable[Lines]) -> tuple[Lines, ...]:
    """Return the ranges in order, those that overlap or touch as one; at most `MAX_RANGES`, the longest."""
    out: list[Lines] = []
    for first, last in sorted(lines):
        if last < first:
            continue
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    longest = sorted(out, key=lambda one: one[0] - one[1])[:MAX_RANGES]
    return tuple(sorted(longest))


def encode(record: FileSeen) -> str:
    """Return a record as `STORE` takes it."""
    return record.model_dump_json(exclude_defaults=True)


def decode(value: bytes | str | None) -> FileSeen | None:
    """Return the record in a stored value; None for none."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else value
    return FileSeen.model_validate_json(text.partition(" ")[2])


def field(path: str) -> bytes:
    """Return a path as Redis takes it, also one whose name is no text."""
    return path.encode("utf-8", "surrogatepass")


def _common(one: Sequence[Lines], other: Sequence[Lines]) -> tuple[Lines, ...]:
    return joined((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)


def _step(call: str) -> tuple[int, int]:
    key = CallKey.parse(call)
    return key.generation, key.step
