"""What a server waits for that ends, and what it leaves."""

import asyncio
import threading
from typing import Any

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import Serves, prompt


async def test_only_what_is_at_work_is_waited_for_and_no_longer_than_it_may(serve: Serves) -> None:
    gate = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        if messages[1]["content"] == "slow":
            gate.wait(100)
        return Turn("done")

    served = await serve(script)
    client = served.client()
    made: dict[str, str] = {}
    for said, body in (("idle", prompt("x", stay_open=True)), ("posts", {"loop": "none"}), ("slow", prompt("slow"))):
        made[said] = (await client.post("/v1/sessions", json=body)).json()["session_id"]
    async with asyncio.timeout(60):
        while (await client.get(f"/v1/sessions/{made['idle']}")).json()["status"] != "idle":
            await asyncio.sleep(0.02)

    assert await served.sessions.drain(0) == (2, 1)
    refused = await client.post("/v1/sessions", json=prompt())
    assert refused.status_code == 503
    draining = asyncio.create_task(served.sessions.drain(100))
    gate.set()
    assert await draining == (2, 0)
    assert (await client.get(f"/v1/sessions/{made['slow']}")).json()["status"] == "completed"
    # A person who comes meanwhile is heard, and what that makes of it is waited for.
    assert (await client.post(f"/v1/sessions/{made['idle']}/finish")).status_code == 202
    assert await served.sessions.drain(100) == (1, 0)
