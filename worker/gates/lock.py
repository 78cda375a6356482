"""Gate 2, the optimistic lock: a call changes only what its session has seen, and as it was when it was seen.

The gate itself only hands the call its session's read metadata; the tool asks it once the guest has told the
canonical path, and holds the path meanwhile: guest's `stat` → metadata → guest's compare-and-replace → metadata.
Two boxes on one directory are two guests, so whoever replaces a file holds a short lock in Redis, too. A writer that
is none of ours may still come between the guest's comparison and its rename.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import redis

from sandbox.requests import ReadAnswer, StatAnswer, Version
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.read import lines_left
from tools.seen import Change
from worker.contract import keys, metadata
from worker.contract.metadata import FileSeen, Lines, SeenVersion
from worker.contract.orders import BoxOrder, CallOrder, WorkspaceMode
from worker.gates.gate import GateCall, Handler
from worker.patience import patiently

log = logging.getLogger(__name__)

HOLD_S = 180
"""How long a path is held at most; longer than the guest's longest replace with the link made again meanwhile."""
WAIT_S = 20.0
POLL_S = 0.02
BOX_WORKSPACE = "/workspace"
TOLD_RANGES = 10

HOLD = """
-- KEYS: path lock. ARGV: token (a call's key), ttl_ms. Returns 1 when the token holds it now; asked again, too.
-- What an earlier step of the same session holds was left by a node that died: that call was answered long ago.
local function parts(token) return string.match(token, '^(.*):(%d+):(%d+):%d+:%d+$') end
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  local session, generation, step = parts(held)
  local own_session, own_generation, own_step = parts(ARGV[1])
  if not session or session ~= own_session then return 0 end
  generation, own_generation = tonumber(generation), tonumber(own_generation)
  if generation > own_generation then return 0 end
  if generation == own_generation and tonumber(step) >= tonumber(own_step) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

LET_GO = """
-- KEYS: path lock. ARGV: token. Nobody lets go of what another one holds.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class ReadMetadata:
    """What sessions have seen, in Redis. Thread-safe; records change by compare-and-set."""

    def __init__(self, client: redis.Redis, wait_s: float = WAIT_S) -> None:
        self._redis = client
        self._wait_s = wait_s
        self._store = client.register_script(metadata.STORE)
        self._hold = client.register_script(HOLD)
        self._let_go = client.register_script(LET_GO)

    def load(self, session: str, path: str) -> FileSeen | None:
        """Return what a session has seen of a file, None for nothing."""
        return metadata.decode(patiently(lambda: self._redis.hget(keys.seen(session), metadata.field(path))))

    def update(self, session: str, path: str, change: Callable[[FileSeen | None], FileSeen | None]) -> None:
        """Store what `change` makes of the record there is; nothing where that is None or the same."""
        field = metadata.field(path)

        def attempt() -> bool:
            value = self._redis.hget(keys.seen(session), field)
            before = metadata.decode(value)
            after = change(before)
            if after is None or after == before:
                return True
            arguments = [field, value or b"", metadata.encode(after), keys.SESSION_TTL_S, metadata.MAX_FILES]
            return bool(self._store(keys=[keys.seen(session)], args=arguments))

        try:
            while not patiently(attempt):
                pass
        except redis.RedisError as exc:
            # What is not noted must be read again; the call itself has its result.
            log.warning("what a call saw was not noted", extra={"session_id": session, "error": str(exc)})

    def narrow(self, order: CallOrder, before: ToolResult, after: ToolResult) -> None:
        """Take back of what a call showed the lines that a budget cut away."""
        path = before.data.get("path")
        if before.text == after.text or not isinstance(path, str):
            return
        left = lines_left(before.text, after.text)
        self.update(order.key.session, path, lambda record: metadata.narrowed(record, order.key, left))

    @contextmanager
    def held(self, place: str, token: str) -> Iterator[None]:
        """Hold a place against every other token while the block runs.

        Raises:
            ToolFailure: another call has held it for too long.
        """
        lock = keys.path_lock(place)
        deadline = time.monotonic() + self._wait_s
        while not patiently(lambda: self._hold(keys=[lock], args=[token, HOLD_S * 1000])):
            if time.monotonic() > deadline:
                raise ToolFailure(ErrorCode.CONFLICT, "Another call is changing this file just now. Try again.")
            time.sleep(POLL_S)
        try:
            yield
        finally:
            self.let_go(place, token)

    def let_go(self, place: str, token: str) -> None:
        """Give a place free if the token holds it."""
        try:
            self._let_go(keys=[keys.path_lock(place)], args=[token])
        except redis.RedisError as exc:
            log.info("a path's lock is left to expire", extra={"call_id": token, "error": str(exc)})


class LockGate:
    """Gives each call its session's read metadata."""

    def __init__(self, seen: ReadMetadata) -> None:
        self._seen = seen

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return what follows; Edit and Write refuse there what their session has not seen."""
        return following(replace(call, seen=CallFiles(self._seen, call.order)))


class CallFiles:
    """The files of one call's session."""

    def __init__(self, seen: ReadMetadata, order: CallOrder) -> None:
        self._seen = seen
        self._order = order

    def shown(self, answer: ReadAnswer, last_line: int) -> None:
        """Note the lines that the call showed; a line whose end was left out counts, since the answer says so."""
        version, key = _seen_version(answer.version), self._order.key
        lines: Sequence[Lines] = [(answer.first_line, last_line)]
        self._seen.update(
            key.session,
            answer.path,
            lambda before: metadata.shown(before, version, key, lines, answer.total_lines),
        )

    @contextmanager
    def changing(self, found: StatAnswer, *, whole: bool, join: bool) -> Iterator[Change]:
        """Hold the path and yield the version that may be replaced.

        Raises:
            ToolFailure: the file was not read, not all of it, is missing, or is being changed by another call.
        """
        key, token = self._order.key, str(self._order.key)
        place = place_of(self._order.box, found.path)
        if join:
            try:
                yield Change(found.path, done=self._made)
            finally:
                # Held by the life of this node that started the call, and by nobody else under this token.
                self._seen.let_go(place, token)
            return
        with self._seen.held(place, token):
            if found.kind == "file":
                expected = _expected(found.path, self._seen.load(key.session, found.path), whole=whole)
                yield Change(found.path, expected, done=self._made)
            elif found.kind == "missing" and not whole:
                raise ToolFailure(ErrorCode.NOT_FOUND, f"{found.path} does not exist. Find it with Glob.")
            else:
                # The guest refuses what is no file, in its own words.
                is_missing = found.kind == "missing"
                yield Change(found.path, found.version, must_be_new=is_missing, done=self._made)

    def _made(self, path: str, version: Version) -> None:
        record = metadata.made(_seen_version(version))
        self._seen.update(self._order.key.session, path, lambda _: record)


def place_of(box: BoxOrder, path: str) -> str:
    """Return what names a file among all boxes: its path on the host if it lies in the workspace, hashed.

    The name only; nothing on the host is opened. Elsewhere in a box a file is the session's own.
    """
    inside = path.removeprefix(BOX_WORKSPACE + "/")
    if inside == path:
        name = f"{box.session}:{path}"
    elif box.workspace_mode is WorkspaceMode.BIND:
        name = f"{os.path.realpath(box.workspace)}/{inside}"
    else:
        name = f"{Path(box.session_dir) / 'work'}/{inside}"
    return hashlib.sha256(metadata.field(name)).hexdigest()


def _expected(path: str, seen: FileSeen | None, *, whole: bool) -> Version:
    if seen is None:
        way = "all of it first; what Read cannot show can be removed with Bash" if whole else "it first"
        raise ToolFailure(ErrorCode.CONFLICT, f"{path} was not read in this session. Nothing was changed: Read {way}.")
    missing = seen.missing() if whole else ()
    if missing:
        told = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in missing[:TOLD_RANGES])
        more = f" and {len(missing) - TOLD_RANGES} more ranges" if len(missing) > TOLD_RANGES else ""
        raise ToolFailure(
            ErrorCode.CONFLICT,
            f"{path} has {seen.total_lines} lines, of which these were not shown: {told}{more}. Nothing was changed: "
            "Read them before you replace all of it, or change a part with Edit.",
        )
    return Version(**seen.version.model_dump())


def _seen_version(version: Version) -> SeenVersion:
    return SeenVersion(**asdict(version))
