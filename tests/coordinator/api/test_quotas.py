"""Quotas of several servers of one cluster, and of the next one."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import Served, Serves, code, prompt
from worker.contract import keys

LATE = [Turn("late", delay_s=60)]
BOUNDS = pytest.mark.parametrize("quota", [{"created_per_hour": 6}, {"running": 2, "queued": 4}])


def there(served: Served, client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The same principal at another server."""
    return served.client(client.headers["authorization"].removeprefix("Bearer "))


async def statuses(*clients: httpx2.AsyncClient, times: int) -> list[int]:
    asked = [client.post("/v1/sessions", json=prompt()) for _ in range(times) for client in clients]
    responses = await asyncio.gather(*asked)
    for refused in responses:
        assert refused.status_code == 201 or (code(refused), int(refused.headers["retry-after"]) > 0) == (
            "TOO_MANY",
            True,
        )
    return sorted(one.status_code for one in responses)


@BOUNDS
async def test_two_servers_give_one_quota_also_to_many_at_once(serve: Serves, quota: dict[str, int]) -> None:
    one, two = await serve(LATE), await serve(LATE)
    client = one.principal("team", quota=quota)
    assert await statuses(client, there(two, client), times=15) == [201] * 6 + [429] * 24
    assert await statuses(there(two, one.principal("other", quota=quota)), times=1) == [201]


@BOUNDS
async def test_a_restart_begins_no_new_quota(redis_url: str, state_dir: Path, quota: dict[str, int]) -> None:
    async with AsyncExitStack() as stack:
        served = await Serves(stack, redis_url, state_dir)(LATE)
        token = served.tokens.create("team")
        client = served.principal("team", quota=quota)
        assert await statuses(client, times=4) == [201] * 4
    async with AsyncExitStack() as stack:
        served = await Serves(stack, redis_url, state_dir)(LATE)
        assert await statuses(served.client(token), times=4) == [201, 201, 429, 429]


async def test_what_ended_at_one_server_makes_room_at_the_other(serve: Serves, redis_client: redis.Redis) -> None:
    one, two = await serve(LATE), await serve(LATE)
    client = one.principal("team", quota={"running": 1, "queued": 0})
    other = there(two, client)
    for here, next_one in ((client, other), (other, client)):
        made = (await here.post("/v1/sessions", json=prompt())).json()["session_id"]
        assert await statuses(next_one, times=1) == [429]
        told = await one.client().post("/v1/sessions", json=prompt())
        assert told.status_code == 201, "others have room"
        await here.post(f"/v1/sessions/{made}/cancel")
        await one.ended(here, made)
        # One that has ended takes its room anew to go on.
        assert (await here.post(f"/v1/sessions/{made}/message", json={"text": "more"})).status_code in (202, 409)
        await here.post(f"/v1/sessions/{made}/cancel")
        await one.ended(here, made)
    assert redis_client.exists(keys.live("team")) == 0


async def test_a_session_that_could_not_begin_is_not_counted(serve: Serves, redis_client: redis.Redis) -> None:
    served = await serve(LATE)
    client = served.principal("team", quota={"created_per_hour": 2, "running": 1, "queued": 1})
    sessions = served.state_dir / "sessions"
    sessions.mkdir(exist_ok=True)
    sessions.rename(served.state_dir / "away")
    sessions.write_text("no directory")
    assert (await client.post("/v1/sessions", json=prompt())).status_code >= 500
    sessions.unlink()
    (served.state_dir / "away").rename(sessions)
    assert redis_client.exists(keys.created("team"), keys.live("team")) == 0
    body: dict[str, Any] = prompt()
    keyed = [await client.post("/v1/sessions", json=body, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [one.status_code for one in keyed] == [201, 200, 200]
    assert redis_client.zcard(keys.created("team")) == 1, "a request that is repeated is one session"


async def test_without_redis_nobody_with_a_quota_gets_more_and_others_what_they_got(
    serve: Serves, state_dir: Path
) -> None:
    served = await serve(LATE, redis_url=f"unix://{state_dir}/none")
    client = served.principal("team", quota={"created_per_hour": 5})
    key = {"Idempotency-Key": "k"}
    for body in (prompt("one"), prompt("another")):
        refused = await client.post("/v1/sessions", json=body, headers=key)
        assert (refused.status_code, code(refused)) == (503, "UNAVAILABLE")
        assert int(refused.headers["retry-after"]) > 0
        assert "Redis" in refused.json()["error"]["message"]
    assert (await client.get("/v1/sessions")).json()["sessions"] == []
    assert (await served.client().post("/v1/sessions", json=prompt())).status_code == 201
