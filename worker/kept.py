"""Private copies of sessions that may go on, and whether anybody is at work in one: **kept** → retention.

A session is left alone while somebody writes its transcript, while its owner has a lease, and while a box works in it
here. What Redis cannot tell proves nothing: then nothing is removed.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis

from worker.beneath import remove_tree
from worker.contract import keys
from worker.contract.extras import ENV_FILE
from worker.own_disk import IMAGE, OwnDisks
from worker.workspace import locked

COPIES = ("work", "base", "work.part", "base.part")


class KeptCopies:
    """Knows who lives, and removes copies.

    Args:
        client: Redis with the owners of sessions; None where there is no cluster, and locks alone tell who lives.
        disks: The disks that copies may have for themselves.
        has_box: Whether a session has a box on this node.
    """

    def __init__(
        self,
        client: redis.Redis | None,
        disks: OwnDisks,
        has_box: Callable[[str], bool],
    ) -> None:
        self._redis = client
        self._disks = disks
        self._has_box = has_box

    def is_live(self, session_dir: Path) -> bool:
        """Return whether somebody may be at work in a session: a box here, an owner, a writer of its transcript.

        Raises:
            redis.RedisError: it cannot be asked.
            OSError: the directory cannot be looked at.
        """
        if self._has_box(session_dir.name) or any(_is_locked(path) for path in session_dir.glob("*.jsonl")):
            return True
        return self._has_owner(session_dir.name)

    def _has_owner(self, session: str) -> bool:
        if self._redis is None:
            return False
        owner = self._redis.hget(keys.session(session), "owner")
        if not owner:
            return False
        name = owner.decode() if isinstance(owner, bytes) else str(owner)
        return bool(self._redis.exists(keys.coordinator_lease(name)))

    def remove(self, session_dir: Path) -> None:
        """Remove a session's copy, and the values of its box's variables.

        Raises:
            OSError: it cannot be.
        """
        with locked(session_dir):
            self._disks.remove(session_dir)
            for name in COPIES:
                remove_tree(session_dir / name)
        # The values of its box's variables wait for nothing any more.
        with suppress(FileNotFoundError):
            (session_dir / ENV_FILE).unlink()


def has_copy(session_dir: Path) -> bool:
    """Return whether anything of a private copy is there."""
    return any((session_dir / name).exists() for name in (*COPIES, IMAGE))


def last_event_at(session_dir: Path) -> float:
    """Return when a session's transcript was last written, Unix seconds; without one when its directory was.

    Raises:
        OSError: it cannot be looked at.
    """
    times = [path.stat().st_mtime for path in session_dir.glob("*.jsonl")]
    return max(times, default=session_dir.stat().st_mtime)


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
