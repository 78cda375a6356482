"""What claims in Redis say of calls, beside what their answers say: they stand as long as the session runs."""

import time
from collections.abc import Mapping
from pathlib import Path

import redis

from coordinator.session.call_events import CallFinished
from coordinator.session.reading import read_session, segments
from coordinator.session.takeover import TAIL_BYTES
from worker.contract import keys, scripts
from worker.contract.orders import CallKey

Call = tuple[str, int, int]
"""Session, step, index."""
END_S = 20.0
"""A session's claims are forgotten so long before its end stands in its transcript, at most."""


def claimed(client: redis.Redis) -> set[Call]:
    """Return the calls that a worker has started, as far as Redis still knows."""
    names = [name.decode() for name in client.scan_iter(keys.claim("*"), count=1_000)]
    held = dict(zip(names, client.mget(names) if names else (), strict=True))
    found = (
        CallKey.parse(name.removeprefix(keys.claim("")))
        for name, value in held.items()
        if value not in (None, scripts.FENCED.encode())
    )
    return {(key.session, key.step, key.index) for key in found}


def without_claim(sessions: Path, client: redis.Redis, end_s: float = END_S) -> list[str]:
    """Return the calls of running sessions that were answered as success and have no claim.

    Args:
        sessions: The sessions' directories.
        client: Of a Redis that has lost nothing.
        end_s: How long the end of a session that forgets its claims may take.
    """
    answered = {one: successes(one) for one in sessions.iterdir() if segments(one) and not has_ended(one)}
    known = claimed(client)
    lacking: Mapping[Path, set[Call]] = {one: calls - known for one, calls in answered.items() if calls - known}
    deadline = time.monotonic() + end_s
    while (left := [one for one in lacking if not has_ended(one)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [
        f"{name} step {step} call {index}: ran without a claim" for one in left for name, step, index in lacking[one]
    ]


def successes(session_dir: Path) -> set[Call]:
    """Return the calls of a session that were answered as success."""
    events = [entry.event for entry in read_session(session_dir).entries]
    return {
        (session_dir.name, event.step, event.index)
        for event in events
        if isinstance(event, CallFinished) and event.status == "success"
    }


def has_ended(session_dir: Path) -> bool:
    """Return whether a session's transcript says that it has ended."""
    paths = segments(session_dir)
    return bool(paths) and b'"type":"session_ended"' in paths[max(paths)].read_bytes()[-TAIL_BYTES:]
