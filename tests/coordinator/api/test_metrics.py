"""`/metrics` and `/readyz` of a server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from coordinator.cluster.execute import Job
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.partition import Travel
from tests.coordinator.api.conftest import Serves, code, prompt
from tests.orders import box_order, call_order
from worker.contract.orders import CallKey, CallOutcome, NodeLife

TOKEN = "a-token-for-prometheus"


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels, as Prometheus writes them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def scraped(client: httpx2.AsyncClient, **headers: str) -> dict[str, float]:
    answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


async def test_metrics_are_for_who_has_their_token(serve: Serves) -> None:
    served = await serve(metrics_token=TOKEN)
    nobody, principal = served.client(None), served.client()
    tries: list[tuple[httpx2.AsyncClient, dict[str, Any]]] = [
        (nobody, {}),
        (nobody, {"Authorization": "Bearer other"}),
        (nobody, {"Authorization": TOKEN}),
        (nobody, {"Authorization": "Bearer \u00e9".encode()}),
        (principal, {}),
    ]
    for client, headers in tries:
        answer = await client.get("/metrics", headers=headers)
        assert (answer.status_code, code(answer)) == (401, "UNAUTHENTICATED")
    assert (await scraped(nobody, Authorization=f"Bearer {TOKEN}"))["sandhog_redis_up"] == 1


async def test_without_a_token_only_this_machine_may_ask_and_nobody_through_a_proxy(serve: Serves) -> None:
    client = (await serve()).client(None)
    assert (await scraped(client))["sandhog_redis_up"] == 1
    refused = await client.get("/metrics", headers={"X-Forwarded-For": "192.0.2.1"})
    assert code(refused) == "UNAUTHENTICATED"


async def test_a_session_is_counted_and_nothing_that_anybody_said_is_a_label(serve: Serves) -> None:
    script = [Turn(calls=(ScriptedCall("NoSuchTool-evil", {}), ScriptedCall("TodoWrite", {"todos": []}))), Turn("done")]
    served = await serve(script)
    client = served.client()
    session = (await client.post("/v1/sessions", json=prompt("a-secret-prompt", loop="model"))).json()["session_id"]
    await client.post(f"/v1/sessions/{session}/cancel")
    await served.ended(client, session)

    text = (await client.get("/metrics")).text
    told = samples(text)
    assert told["sandhog_sessions_ended_total{status=cancelled}"] == 1
    assert told["sandhog_sessions{status=running}"] == 0
    assert told["sandhog_nodes{state=ready}"] == 0
    assert told["sandhog_approvals_waiting"] == 0
    assert told["sandhog_reply_lag_seconds"] == 0
    for said in (session, "a-secret-prompt", "NoSuchTool"):
        assert said not in text


async def test_each_call_of_a_group_and_each_chain_tells_how_long_it_waited_for_its_lane(
    serve: Serves, tmp_path: Path
) -> None:
    served = await serve()
    client, cluster, cancelled = served.client(None), served.sessions.cluster, asyncio.Event()
    node, box = NodeLife(node="n", incarnation="n-1", places=1, lanes=4), box_order("s", tmp_path)
    orders = [
        call_order(key=CallKey(session="s", generation=1, step=1, index=at), box=box, node="n") for at in range(6)
    ]
    jobs, answered = [Job(order, 10.0) for order in orders], set[int]()

    async def keep(outcome: CallOutcome) -> None:
        answered.add(outcome.key.index)

    async def told(count: int) -> float:
        async with asyncio.timeout(30):
            while (found := await scraped(client))["sandhog_lane_wait_seconds_count"] < count:
                await asyncio.sleep(0.01)
        assert found["sandhog_lane_wait_seconds_count"] == count
        return found["sandhog_lane_wait_seconds_sum"]

    assert await told(0) == 0
    await cluster.store.take_lanes("n", 4, ["e1", "e2", "e3"])
    chain = asyncio.create_task(cluster.executor.run(Travel.CHAIN, jobs[:3], node, cancelled, keep))
    await asyncio.sleep(0.5)
    assert await told(0) == 0, "one lane of the four is left to reading calls"
    await cluster.store.give_lanes("n", ["e3"])
    waited_s = await told(1)
    assert waited_s >= 0.5
    # Nobody is there to run anything: the chain keeps its lane, and of the three calls one has the other.
    group = asyncio.create_task(cluster.executor.run(Travel.GROUP, jobs[3:], node, cancelled, keep))
    assert await told(2) < waited_s + 0.4
    cancelled.set()
    await asyncio.gather(chain, group)
    assert answered == set(range(6))


async def test_a_redis_that_is_away_is_told_and_the_rest_is_there(serve: Serves) -> None:
    client = (await serve(redis_url="unix:///nowhere/s")).client()
    told = await scraped(client)
    assert told["sandhog_redis_up"] == 0
    assert "sandhog_nodes{state=ready}" not in told
    assert told["sandhog_sessions{status=running}"] == 0


async def test_ready_says_which_part_is_missing(serve: Serves) -> None:
    served = await serve()
    client = served.client(None)
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    for path in ("/readyz", "/readyz?deep=1"):
        answer = await client.get(path)
        assert (answer.status_code, code(answer)) == (503, "UNAVAILABLE")
        assert "no node" in answer.text or "worker" in answer.text
    away = (await serve(redis_url="unix:///nowhere/s")).client(None)
    assert "Redis" in (await away.get("/readyz")).text
