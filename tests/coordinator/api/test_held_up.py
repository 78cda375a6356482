"""Sessions that were taken over and cannot begin yet: they are heard, shown with the reason, and tried again."""

import asyncio
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from coordinator.service import adopted
from coordinator.session import takeover
from coordinator.session.reserve import RESERVE_BYTES
from tests.coordinator.api.conftest import Served, Serves, prompt
from tests.coordinator.api.test_elsewhere import becomes, dies, heard, made
from tests.coordinator.api.test_own_loop_anywhere import endless, post
from worker.contract import keys

MIB = 1024 * 1024


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own on which there is room for the reserve, and for little besides."""
    path = tmp_path / "volume"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={RESERVE_BYTES + 16 * MIB}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
async def serve_there(redis_url: str, volume: Path) -> AsyncIterator[Serves]:
    async with AsyncExitStack() as stack:
        yield Serves(stack, redis_url, volume)


def fill(volume: Path, left_bytes: int) -> None:
    """Leave so much room, and no reserve."""
    (volume / "reserve").unlink(missing_ok=True)
    (volume / "filler").unlink(missing_ok=True)
    free = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
    with (volume / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - left_bytes)


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.02)


def is_held_up(served: Served, session_id: str) -> bool:
    held = served.sessions.floor.held(session_id)
    return held is not None and held.is_held_up


async def test_a_session_that_cannot_begin_for_a_full_disk_hears_what_is_wanted_and_goes_on_once_there_is_room(
    serve_there: Serves, volume: Path, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = await serve_there(heard), await serve_there(heard)
    there = theirs.client()
    session_id = await made(ours.client(), **prompt("one", stay_open=True))
    path = f"/v1/sessions/{session_id}"
    await becomes(there, session_id, lambda shown: shown["status"] == "idle")
    assert (await ours.client().patch(f"{path}/limits", json={"tokens_in": 900_000})).status_code == 200
    fill(volume, 8 * MIB)
    await dies(ours, session_id, redis_client)
    with caplog.at_level(logging.WARNING):
        await until(lambda: is_held_up(theirs, session_id))
    shown = (await there.get(path)).json()
    assert "cannot go on yet: The disk of" in shown["last_error"], shown
    told = next(one for one in caplog.records if one.getMessage().endswith("taken over cannot go on yet"))
    assert (told.__dict__["session_id"], "is full" in told.__dict__["error"]) == (session_id, True)
    changed = await there.patch(f"{path}/limits", json={"calls": 7})
    assert (changed.status_code, changed.json()["calls"]) == (200, 7), changed.text
    assert (await there.post(f"{path}/message", json={"text": "two"})).status_code == 202
    # Nothing hurries it: who drains the server does not wait for it either.
    assert await theirs.sessions.drain(5.0) == (1, 0)
    theirs.sessions.floor.is_draining = False

    (volume / "filler").unlink()
    shown = await becomes(there, session_id, lambda shown: shown["text"].endswith("two"))
    assert [shown["limits"][name] for name in ("calls", "tokens_in", "steps")] == [7, 900_000, 51], shown
    transcript = (await there.get(f"{path}/transcript")).text
    assert '"calls":7' in transcript, "a later owner goes on with them"
    assert (await there.post(f"{path}/finish")).status_code == 202
    assert (await theirs.ended(there, session_id))["status"] == "completed"


async def test_a_session_that_cannot_begin_is_cancelled_where_its_end_can_be_kept_and_only_then(
    serve_there: Serves, volume: Path, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopted, "LAST_S", 1.0)
    ours, theirs = await serve_there(heard), await serve_there(heard)
    here, there = ours.client(), theirs.client()
    sessions = []
    for _ in range(2):
        sessions.append(session_id := await made(here, loop="none"))
        await becomes(there, session_id, lambda shown: shown["status"] == "running")
        assert (await post(here, f"/v1/sessions/{session_id}", endless(1), wait=0)).status_code == 202
        await becomes(there, session_id, lambda shown: shown["step"] == 1)
    # Of the reserve nothing is left, and no session begins; the end of one finds room.
    fill(volume, 8 * MIB)
    for session_id in sessions:
        await dies(ours, session_id, redis_client)
    await until(lambda: all(is_held_up(theirs, one) for one in sessions))
    first, second = sessions
    assert (await there.post(f"/v1/sessions/{first}/cancel")).status_code == 202
    shown = await theirs.ended(there, first)
    assert (shown["status"], shown["calls"]) == ("cancelled", 1), shown

    fill(volume, MIB // 2)
    assert (await there.post(f"/v1/sessions/{second}/cancel")).status_code == 202
    await asyncio.sleep(2)
    shown = (await there.get(f"/v1/sessions/{second}")).json()
    assert (shown["status"], "1 MiB" in shown["last_error"]) == ("running", True), shown
    fill(volume, 8 * MIB)
    assert (await theirs.ended(there, second))["status"] == "cancelled"
    await until(lambda: not redis_client.exists(keys.owned(theirs.sessions.cluster.ownership.coordinator)))


async def test_a_session_whose_principal_is_no_more_is_tried_again_once_it_is_back(
    serve: Serves, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "LAST_AGAIN_S", 1.0)
    ours, theirs = await serve(heard), await serve(heard)
    team = ours.principal("team")
    session_id = await made(team, **prompt("one", stay_open=True))
    await becomes(team, session_id, lambda shown: shown["status"] == "idle")
    kept = ours.tokens.path.read_bytes()
    ours.tokens.path.write_text('{"principals": []}')
    await dies(ours, session_id, redis_client)
    entry = theirs.sessions.index.get(session_id)
    assert entry is not None
    await until(lambda: entry.facts.last_error is not None)
    assert "Its principal team is no more" in str(entry.facts.last_error)
    ours.tokens.path.write_bytes(kept)
    await until(lambda: theirs.sessions.floor.held(session_id) is not None)
