"""Shows others that a node sees the shared volume, and how its clock goes."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import redis

from worker.contract.marks import NodeMark
from worker.contract.places import node_mark


class Marking:
    """Writes a node's mark; for one thread."""

    def __init__(
        self,
        client: redis.Redis,
        state_dir: Path,
        node: str,
        incarnation: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._redis = client
        self._path = node_mark(state_dir, node)
        self._incarnation = incarnation
        self._now = now

    def write(self) -> None:
        """Write it anew.

        Raises:
            redis.RedisError: Redis' clock cannot be asked.
            OSError: the volume takes nothing.
        """
        before = self._now()
        seconds, micros = self._redis.time()
        # What the question took is shared by both ways.
        skew_s = (before + self._now()) / 2 - (seconds + micros / 1e6)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        mark = NodeMark(incarnation=self._incarnation, skew_s=round(skew_s, 3))
        draft.write_text(mark.model_dump_json(), encoding="utf-8")
        draft.replace(self._path)
