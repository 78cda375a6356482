"""Whether a session is still this node's, as Redis tells it: asked before a box that stood still goes on.

Of a session that has ended, elsewhere or here, Redis knows nothing any more. Its transcript says so.
"""

import json
import logging
import os
import re
from pathlib import Path

import redis

from sandbox.heart import Standing
from sandbox.record import BoxRecord
from worker.contract import keys

log = logging.getLogger(__name__)


SEGMENT = re.compile(r".+\.(?P<generation>[0-9]{1,9})\.jsonl")
TAIL_BYTES = 64 * 1024
"""The last event of a session is looked for in so much of its transcript."""


class Owners:
    """Compares what a box's record says with the session's generation and node. Thread-safe."""

    def __init__(self, client: redis.Redis, node: str) -> None:
        self._redis = client
        self._node = node

    def __call__(self, record: BoxRecord) -> Standing:
        """Return whether the box may go on. What Redis does not say proves nothing: it may have lost it."""
        if not record.session:
            return Standing.OURS
        return self.of(record.session, record.generation, Path(record.spill_dir).parent)

    def of(self, session: str, generation: int, session_dir: Path) -> Standing:
        """Return whether a session's box may be here for the owner that had it in this generation."""
        try:
            found = self._redis.hmget(keys.session(session), ["generation", "node"])
        except redis.RedisError as exc:
            log.info("the owner of a box is not known now", extra={"session_id": session, "error": str(exc)})
            return Standing.UNKNOWN
        present, node = (value.decode() if isinstance(value, bytes) else value for value in found)
        if present is None and _has_ended(session_dir):
            return Standing.LOST
        if present is None or not present.isdigit() or int(present) < generation:
            return Standing.UNKNOWN
        if int(present) > generation or (node and node != self._node):
            return Standing.LOST
        return Standing.OURS


def has_later_owner(session_dir: Path, generation: int) -> bool:
    """Return whether a coordinator has begun a transcript in a later generation: the session is that one's by now."""
    return max(_segments(session_dir), default=0) > generation


def _has_ended(session_dir: Path) -> bool:
    """Return whether the last event of a session's newest transcript is its end: whoever goes on begins another one."""
    segments = _segments(session_dir)
    if not segments:
        return False
    try:
        with segments[max(segments)].open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            last = json.loads(file.read().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        # It is being written, or is nobody's to judge: the box stands still.
        return False
    return isinstance(last, dict) and last.get("type") == "session_ended"


def _segments(session_dir: Path) -> dict[int, Path]:
    try:
        found = {path: SEGMENT.fullmatch(path.name) for path in session_dir.iterdir()}
    except OSError:
        return {}
    return {int(match["generation"]): path for path, match in found.items() if match}
