"""A principal's quota at two `sandhog serve` processes, one of which is killed."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from coordinator.service.principals import Allowance, Quota
from coordinator.service.tokens import Tokens
from tests.cluster.serving import Until, says, serving

pytestmark = pytest.mark.timeout(200)


def test_two_processes_keep_one_quota_and_the_one_after_a_kill_too(
    redis_url: str, state_dir: Path, until: Until
) -> None:
    token = Tokens(state_dir).create("team", Allowance(quota=Quota(running=3, queued=5, created_per_hour=12)))
    cluster = {"SANDHOG_REDIS_URL": redis_url, "SANDHOG_DRAIN_S": "1"}

    def create(client: httpx2.Client) -> int:
        return client.post("/v1/sessions", json={"prompt": "true"}).status_code

    with serving(says, state_dir, until, **cluster) as one, one.client(token) as here:
        with (
            serving(says, state_dir, until, **cluster) as two,
            two.client(token) as there,
            ThreadPoolExecutor(12) as many,
        ):
            assert Counter(many.map(create, [here, there] * 12)) == {201: 8, 429: 16}
            two.process.kill()
            two.process.wait()
        assert create(here) == 429, "what the killed one had is still to be ended by somebody"
    with serving(says, state_dir, until, **cluster) as after, after.client(token) as client:
        live = [one["session_id"] for one in client.get("/v1/sessions").json()["sessions"]]
        assert (len(live), create(client)) == (8, 429)

        def cancelled() -> bool:
            shown = [client.get(f"/v1/sessions/{one}").json() for one in live]
            for one in shown:
                if not one["ended_at"]:
                    client.post(f"/v1/sessions/{one['session_id']}/cancel")
            return all(one["ended_at"] for one in shown)

        until(cancelled, "all have ended", 60)
        until(lambda: create(client) == 201, "there is room again", 30)
        assert [create(client) for _ in range(4)] == [201, 201, 201, 429], "twelve an hour, whoever made them"
