"""When the private copies of sessions are removed that nobody went on with."""

import fcntl
import os
import time
from pathlib import Path

import pytest
import redis

from worker.contract import keys
from worker.contract.extras import ENV_FILE
from worker.contract.removals import Kind
from worker.kept import KeptCopies
from worker.own_disk import OwnDisks
from worker.retention import Bound, Retention

KEEP_S = 3600.0
BOUNDS = {
    Kind.COPY: Bound(KEEP_S, None, "keep_copies"),
    Kind.SPILL: Bound(10 * KEEP_S, None, "keep_spill"),
    Kind.SESSION: Bound(100 * KEEP_S, None, "keep_transcripts"),
}


def session(state_dir: Path, name: str, age_s: float = 2 * KEEP_S) -> Path:
    session_dir = state_dir / "sessions" / name
    (session_dir / "work" / "deep").mkdir(parents=True)
    (session_dir / "base").mkdir()
    for file in (f"{name}.1.jsonl", ENV_FILE, "patch.diff"):
        (session_dir / file).write_text("{}")
    at = time.time() - age_s
    os.utime(session_dir / f"{name}.1.jsonl", (at, at))
    return session_dir


@pytest.fixture
def boxes() -> set[str]:
    return set()


@pytest.fixture
def retention(tmp_path: Path, redis_client: redis.Redis, boxes: set[str]) -> Retention:
    disks = OwnDisks(tmp_path / "disks", makes=False)
    return Retention(tmp_path, KeptCopies(redis_client, disks, boxes.__contains__), BOUNDS)


def test_only_what_nobody_needs_is_removed(
    tmp_path: Path, retention: Retention, redis_client: redis.Redis, boxes: set[str]
) -> None:
    old = session(tmp_path, "old")
    young = session(tmp_path, "young", age_s=10.0)
    written, owned, boxed = (session(tmp_path, name) for name in ("written", "owned", "boxed"))
    boxes.add("boxed")
    redis_client.hset(keys.session("owned"), "owner", "me")
    redis_client.set(keys.coordinator_lease("me"), "1")
    with (written / "written.1.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [(one.session, one.kind) for one in retention.sweep()] == [("old", Kind.COPY)]
    assert sorted(path.name for path in old.iterdir()) == ["old.1.jsonl", "patch.diff"]
    for left in (young, written, owned, boxed):
        assert (left / "work" / "deep").is_dir(), left.name
    assert retention.sweep() == [], "not looked at again so soon"


def test_nothing_is_removed_that_redis_cannot_be_asked_about(tmp_path: Path) -> None:
    session_dir = session(tmp_path, "old")
    with redis.Redis(unix_socket_path="/nonexistent") as away:
        kept = KeptCopies(away, OwnDisks(tmp_path / "disks", makes=False), lambda name: False)
        with pytest.raises(redis.RedisError):
            Retention(tmp_path, kept, BOUNDS).sweep()
    assert (session_dir / "work").is_dir()
