"""Removes what is due beside the nodes: retention → **collecting** → `sandhog gc`."""

import json
from collections.abc import Iterator

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.contract.removals import Removal
from worker.kept import KeptCopies
from worker.own_disk import OwnDisks
from worker.retention import Retention, bounds_of
from worker.settings import NodeSettings

SILENT_S = 5


def collect(settings: NodeSettings, *, is_trial: bool) -> list[Removal]:
    """Remove what is due on the volume of these settings; return it. Without `redis_url` locks alone tell who lives.

    Raises:
        redis.RedisError: it cannot be asked; nothing more was removed.
    """
    client = _connect(settings.redis_url) if settings.redis_url else None
    try:
        boxed = set(_boxed(settings))
        disks = OwnDisks(settings.state_dir / "disks", makes=False)
        kept = KeptCopies(client, disks, boxed.__contains__)
        return Retention(settings.state_dir, kept, bounds_of(settings)).collect(is_trial=is_trial)
    finally:
        if client is not None:
            client.close()


def _connect(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=SILENT_S)


def _boxed(settings: NodeSettings) -> Iterator[str]:
    """Yield the sessions that have a box, as the nodes' records on the volume say."""
    for pattern in ("nodes/*/boxes/*.json", "runs/*/node/boxes/*.json"):
        for path in settings.state_dir.glob(pattern):
            try:
                yield str(json.loads(path.read_text())["session"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
