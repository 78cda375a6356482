"""Private copies of sessions that may go on: kept for a while after their last owner, then removed by any node.

A copy is left alone while somebody writes its session's transcript, while its owner has a lease, and while a box works
in it here. What Redis cannot tell proves nothing: then nothing is removed.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis

from worker.beneath import remove_tree
from worker.contract import keys
from worker.contract.extras import ENV_FILE
from worker.own_disk import IMAGE, OwnDisks
from worker.workspace import locked

log = logging.getLogger(__name__)

EVERY_S = 600.0
COPIES = ("work", "base", "work.part", "base.part")


class KeptCopies:
    """Removes what nobody went on with in time; for one thread.

    Args:
        state_dir: The shared volume.
        client: Redis with the owners of sessions.
        disks: The disks that copies may have for themselves.
        has_box: Whether a session has a box on this node.
        keep_s: How long a copy is kept after the last event of its session.
        now: The time of day.
    """

    def __init__(
        self,
        state_dir: Path,
        client: redis.Redis,
        disks: OwnDisks,
        has_box: Callable[[str], bool],
        keep_s: float,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = state_dir / "sessions"
        self._redis = client
        self._disks = disks
        self._has_box = has_box
        self._keep_s = keep_s
        self._now = now
        self._due_at = 0.0

    def sweep(self) -> list[str]:
        """Remove what is due, some times an hour; return whose copies were removed.

        Raises:
            redis.RedisError: it cannot be asked; nothing more was removed.
        """
        if time.monotonic() < self._due_at or not self._sessions.is_dir():
            return []
        self._due_at = time.monotonic() + EVERY_S
        removed = []
        for session_dir in sorted(self._sessions.iterdir()):
            try:
                if self._is_due(session_dir):
                    self._remove(session_dir)
                    removed.append(session_dir.name)
            except OSError as exc:
                log.warning("a kept copy was not removed", extra={"session_id": session_dir.name, "error": str(exc)})
        return removed

    def _is_due(self, session_dir: Path) -> bool:
        if not any((session_dir / name).exists() for name in (*COPIES, IMAGE)):
            return False
        segments = list(session_dir.glob("*.jsonl"))
        touched_at = max((path.stat().st_mtime for path in segments), default=session_dir.stat().st_mtime)
        if self._now() - touched_at < self._keep_s or self._has_box(session_dir.name):
            return False
        return not any(_is_locked(path) for path in segments) and not self._has_owner(session_dir.name)

    def _has_owner(self, session: str) -> bool:
        owner = self._redis.hget(keys.session(session), "owner")
        if not owner:
            return False
        name = owner.decode() if isinstance(owner, bytes) else str(owner)
        return bool(self._redis.exists(keys.coordinator_lease(name)))

    def _remove(self, session_dir: Path) -> None:
        with locked(session_dir):
            self._disks.remove(session_dir)
            for name in COPIES:
                remove_tree(session_dir / name)
        # The values of its box's variables wait for nothing any more.
        with suppress(FileNotFoundError):
            (session_dir / ENV_FILE).unlink()


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
