"""A canary call through queue, worker and a box, and what the node tells of it: metrics and spans."""

import asyncio
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.service.box_canary import BoxCanary
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from tests.cluster.machines import Node
from tests.cluster.test_canary import free_port
from tests.coordinator.collecting import collecting
from worker.contract.traces import call_span_id

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def samples(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        found = {}
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found[" ".join((sample.name, *sorted(sample.labels.values())))] = sample.value
        return found


async def test_a_canary_call_comes_back_and_is_seen_on_its_way(
    redis_url: str, state_dir: Path, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        settings = {
            "SANDHOG_METRICS_PORT": str(port),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "SANDHOG_PROOFS_DIR": os.environ["SANDHOG_PROOFS_DIR"],
        }
        node = Node("n1", state_dir, redis_url, settings)
        async with open_cluster(redis_url, state_dir) as cluster:
            canary = BoxCanary(cluster, DEFAULT_IMAGE, every_s=3600, limit_s=150)
            assert not canary.is_well, "nothing is known yet"
            node.start()
            try:
                await canary.call()
                assert canary.problem is None
                assert canary.took_s > 0
                assert list((state_dir / "sessions").iterdir()) == list((state_dir / "canary").iterdir()) == []
                told = await asyncio.to_thread(samples, port)
            finally:
                node.process.terminate()
                ended = await asyncio.to_thread(node.process.wait, 60)
            assert ended == 0
        assert told["sandhog_call_run_seconds_count Bash success"] == 1
        assert told["sandhog_call_queue_seconds_count Bash"] == 1
        assert told["sandhog_box_starts_total"] == 1
        assert told["sandhog_boxes session"] == 0, "it was ended"
        spans = {span.name: span for span in collector.spans}
        assert set(spans) == {"node Bash", "run Bash"}
        session = next(one.value.string_value for one in spans["node Bash"].attributes if one.key == "sandhog.call.key")
        expected = call_span_id(session.partition(":")[0], 1, 0)
        assert int.from_bytes(spans["node Bash"].parent_span_id, "big") == expected


async def test_a_canary_call_that_finds_no_worker_says_so(redis_url: str, state_dir: Path) -> None:
    async with open_cluster(redis_url, state_dir) as cluster:
        canary = BoxCanary(cluster, DEFAULT_IMAGE, every_s=3600, limit_s=0.5)
        await canary.call()
        assert not canary.is_well
        assert "not back" in str(canary.problem)
