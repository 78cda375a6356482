"""What many sessions, long sessions and many nodes cost: throughput, memory, and curves of the cost of a call.

Run by hand: `.venv/bin/python -m tests.bench.scale [--quick] [--write-docs]`. Coordinator, Redis, nodes and model share
the machine's cores; the CPU of each is told. Read ratios and costs: calls a second are this machine's at this hour.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker

from coordinator.settings import DEFAULT_IMAGE
from tests.bench import call_cost
from tests.bench.model_server import delay_s
from tests.bench.scale_docs import document
from tests.bench.scale_parts import MIB, Cost, Load, Stage, chunks, memory_bytes, opened, run

BOUNDS_S = (0.5, 2.0)
EXECS_AT_ONCE = 8
CONTEXT_TOKENS = 128_000
MOST_CURVE_STEPS = 30
"""A longer history makes longer requests, which would be taken for the cost of having few sessions."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    busy_sessions: int = 64
    busy_steps: int = 10
    calm_sessions: int = 200
    fewer_sessions: tuple[int, ...] = (25, 50, 75, 100)
    calm_steps: int = 8
    execs: int = 200
    single_calls: int = 100
    sessions: tuple[int, ...] = (1, 8, 64, 200, 500)
    nodes: tuple[int, ...] = (1, 2, 4, 8)
    calls: int = 10_000
    curve_calls: int = 2_400


QUICK = Sizes(
    busy_sessions=16,
    busy_steps=4,
    calm_sessions=20,
    fewer_sessions=(5, 10),
    calm_steps=3,
    execs=24,
    single_calls=20,
    sessions=(1, 8, 32),
    nodes=(1, 2),
    calls=400,
    curve_calls=128,
)


async def throughput(sizes: Sizes) -> dict[str, Any]:
    """Measure many sessions with four calls a step on one node, and `docker exec` right behind."""
    async with opened(places=sizes.busy_sessions, lanes=16) as stage:
        load = await run(stage, sizes.busy_sessions, sizes.busy_steps, 4)
    execs_per_s = await asyncio.to_thread(docker_execs, sizes.execs)
    with contextlib.closing(call_cost.Host(0)) as host:
        floor = call_cost.Way("host", host.once, per_round=sizes.execs)
        await floor.round()
    return {
        "sessions": sizes.busy_sessions,
        **asdict(load.cost),
        "execs_per_s": execs_per_s,
        "ratio": load.cost.per_s / execs_per_s,
        "floor_ms": floor.median_ms,
    }


def docker_execs(count: int) -> float:
    """Return how many `docker exec` of `true` a second the engine does, several at once."""
    with contextlib.closing(docker.from_env()) as client, contextlib.ExitStack() as stack:
        containers = []
        for _ in range(EXECS_AT_ONCE):
            argv = ["sleep", "3600"]
            one = client.containers.run(DEFAULT_IMAGE, argv, detach=True, network_mode="none", init=True)
            stack.callback(one.remove, force=True)
            containers.append(one)
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(EXECS_AT_ONCE) as pool:
            codes = list(pool.map(lambda at: containers[at % EXECS_AT_ONCE].exec_run(["true"])[0], range(count)))
        assert not any(codes)
        return count / (time.perf_counter() - began)


async def single(sizes: Sizes) -> dict[str, Any]:
    """Measure one idle session's call beside the guest layer alone."""
    ways = await call_cost.measure(sizes.single_calls)
    host, guest, path = ways[0], ways[3], ways[4]
    return {
        "floor_ms": host.median_ms,
        "guest_ms": guest.median_ms,
        "path_ms": path.median_ms,
        "added_ms": path.median_ms - guest.median_ms,
    }


async def delays(sizes: Sizes) -> dict[str, Any]:
    """Measure many sessions whose model takes its time: what we add to it, and what each session holds."""
    async with opened(places=sizes.calm_sessions, lanes=32) as stage:
        # Once with few, so that what is loaded at first use is not counted.
        await run(stage, 4, 1, 1)
        _give_back()
        before, redis_before = memory_bytes(), stage.redis_bytes()
        load = await run(stage, sizes.calm_sessions, sizes.calm_steps, 1, bounds_s=BOUNDS_S)
        after, redis_after = await _at_rest(stage)
        await run(stage, sizes.calm_sessions, sizes.calm_steps, 1, bounds_s=BOUNDS_S)
        after_more, _ = await _at_rest(stage)
        left = sorted({key.decode().split(":")[1] for key in stage.client.scan_iter("sandhog:*")})
    added_ms = _added_ms(load)
    return {
        "sessions": sizes.calm_sessions,
        "steps": len(added_ms),
        "added_p50_ms": _percentile(added_ms, 0.5),
        "added_p99_ms": _percentile(added_ms, 0.99),
        "call_p50_ms": _percentile(sorted(load.times_ms), 0.5),
        "coordinator_mib": (load.busy_bytes - before) / MIB / sizes.calm_sessions,
        "redis_kib": (load.busy_redis_bytes - redis_before) / 1024 / sizes.calm_sessions,
        "coordinator_left_mib": (after - before) / MIB,
        "coordinator_left_more_mib": (after_more - before) / MIB,
        "redis_left_kib": (redis_after - redis_before) / 1024,
        "keys_left": left,
        "fewer": [[sessions, *await _few_delays(sessions, sizes.calm_steps)] for sessions in sizes.fewer_sessions],
    }


async def _at_rest(stage: Stage) -> tuple[int, int]:
    """Return the memory of coordinator and Redis once all sessions have ended."""
    _give_back()
    # Reply streams are trimmed behind their reader.
    await asyncio.sleep(2.0)
    return memory_bytes(), stage.redis_bytes()


async def _few_delays(sessions: int, steps: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of what is added where fewer sessions want fewer steps a second."""
    async with opened(places=sessions, lanes=32) as stage:
        await run(stage, 4, 1, 1)
        added_ms = _added_ms(await run(stage, sessions, steps, 1, bounds_s=BOUNDS_S))
    return _percentile(added_ms, 0.5), _percentile(added_ms, 0.99)


def _added_ms(load: Load) -> list[float]:
    """Return what was added to the model's delay, from the least; a step begins one behind the request it makes."""
    return sorted((gap_s - delay_s(BOUNDS_S, session, step - 1)) * 1000 for session, step, gap_s in load.gaps_s)


async def by_sessions(sizes: Sizes) -> list[tuple[int, Cost]]:
    """Measure a call's cost against the number of sessions, on a node that answers at once."""
    found = []
    for sessions in sizes.sessions:
        async with opened() as stage:
            found.append((sessions, (await run(stage, sessions, _curve_steps(sizes, sessions), 4)).cost))
    return found


def _curve_steps(sizes: Sizes, sessions: int) -> int:
    """Return the steps of each session: as many calls for all points, but histories of about one length."""
    return max(3, min(MOST_CURVE_STEPS, sizes.curve_calls // (4 * sessions)))


async def by_nodes(sizes: Sizes) -> list[tuple[int, Cost]]:
    """Measure a call's cost against the number of nodes that answer at once."""
    found = []
    for nodes in sizes.nodes:
        async with opened(nodes) as stage:
            found.append((nodes, (await run(stage, 32, max(3, sizes.curve_calls // 128), 4)).cost))
    return found


async def by_calls(sizes: Sizes) -> list[tuple[int, Cost]]:
    """Measure a call's cost against the calls that one session has made; its history is compacted as for a model."""
    calls, every = 20, max(sizes.calls // 10, 100)
    async with opened() as stage:
        load: Load = await run(stage, 1, sizes.calls // calls, calls, every=every, context_tokens=CONTEXT_TOKENS)
    parts = [cost for cost in load.parts() if cost.calls >= every // 2]
    return [((number + 1) * every, cost) for number, cost in enumerate(parts)]


def states(sizes: Sizes) -> list[list[str]]:
    """Return what each figure is of: measurement, sessions, nodes, messages at the end, chunks a reply."""
    calm = f"{sizes.calm_sessions}, {', '.join(map(str, sizes.fewer_sessions))}"
    curve = [_curve_steps(sizes, sessions) for sessions in (sizes.sessions[-1], sizes.sessions[0])]
    return [
        ["throughput", str(sizes.busy_sessions), "1", messages(sizes.busy_steps, 4), str(chunks(4))],
        ["delays", calm, "1", messages(sizes.calm_steps, 1), str(chunks(1))],
        [
            "against sessions",
            f"{sizes.sessions[0]} to {sizes.sessions[-1]}",
            "1, answering",
            f"{messages(curve[0], 4)} to {messages(curve[1], 4)}",
            str(chunks(4)),
        ],
        [
            "against nodes",
            "32",
            f"{sizes.nodes[0]} to {sizes.nodes[-1]}, answering",
            messages(max(3, sizes.curve_calls // 128), 4),
            str(chunks(4)),
        ],
        ["against calls", "1", "1, answering", f"those of {CONTEXT_TOKENS:,} tokens at most", str(chunks(20))],
    ]


def messages(steps: int, calls: int) -> str:
    """Return how many messages a history has after its steps, one to warm up included."""
    return str(2 + (steps + 1) * (1 + calls))


def _give_back() -> None:
    """Have the allocator return what is free, so that memory shows what is held."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _percentile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


async def measure(sizes: Sizes, only: Sequence[str]) -> dict[str, Any]:
    """Return all measurements, by name."""
    found: dict[str, Any] = {}
    for scenario in (throughput, single, delays, by_sessions, by_nodes, by_calls):
        if only and scenario.__name__ not in only:
            continue
        began = time.perf_counter()
        result = await scenario(sizes)
        told = [[at, asdict(cost)] for at, cost in result] if isinstance(result, list) else result
        found[scenario.__name__] = told
        print(f"{scenario.__name__} ({time.perf_counter() - began:.0f} s): {json.dumps(told)}", flush=True)
    return found


def main() -> None:
    """Measure, print, and write the document if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part of it, to see that it runs")
    parser.add_argument("--only", default="", help="names of measurements, with commas between them")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance-scale.md and its plots")
    parser.add_argument("--json", type=Path, help="keep the figures in this file, and start from those that are there")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    found = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    sizes = QUICK if given.quick else Sizes()
    found |= asyncio.run(measure(sizes, only)) | {"states": states(sizes)}
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    found["machine"] = (
        f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"load average at the end {load}"
    )
    if given.json:
        given.json.write_text(json.dumps(found))
    if given.write_docs:
        document(found, Path(__file__).parents[2] / "docs")


if __name__ == "__main__":
    main()
