"""A node whose lanes hang starts itself anew, and nobody's call is lost or doubled by it."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.parts import Cluster
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Stage, answers

pytestmark = pytest.mark.docker

HASTY = """
import os, sys
import worker.gates.lane as lane, worker.machine as machine
if "ANEW" not in os.environ:
    os.environ["ANEW"] = "yes"
    lane.START_S = -100_000.0
    machine.UPKEEP_S = 0.2
    os.environ["SANDHOG_LANES"] = "4"
from worker.__main__ import cli
print("a life begins", os.getpid(), file=sys.stderr, flush=True)
cli()
"""
"""A worker whose first life holds every call to be overdue."""


class Hasty(Embedded):
    def _spawn(self, argv: list[str], log_name: str, environment: dict[str, str], *passed_fds: int) -> Any:
        if "worker" in argv:
            argv = [sys.executable, "-P", "-c", HASTY, "run"]
        return super()._spawn(argv, log_name, environment, *passed_fds)


@pytest.fixture
def embedded(state_dir: Path, docker_engine_or_skip: None, until: Callable[..., None]) -> Iterator[Embedded]:
    running = Hasty(state_dir, dead_man_s=30)
    try:
        until(lambda: answers(running.redis_url), "the private Redis answers")
        yield running
    finally:
        running.close()


@pytest.fixture
async def cluster(embedded: Embedded, state_dir: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(embedded.redis_url, state_dir) as opened:
        yield opened


async def test_calls_under_way_are_answered_by_the_nodes_next_life(
    cluster: Cluster, project: Path, embedded: Embedded
) -> None:
    pid = embedded.worker_pid
    # Long enough to be under way when the first life looks at its lanes, and when the next one begins.
    command = "echo x >> log; sleep 4; cat log"
    played = await Stage(cluster, project).play(
        [Turn(calls=(ScriptedCall("Bash", {"command": command}),)), Turn("done")]
    )

    assert played.result.status == "completed"
    assert "x" in str(played.answers()[0]["content"])
    assert (project / "log").read_text() == "x\n"
    log = (embedded.run_dir / "worker.log").read_text()
    assert log.count(f"a life begins {pid}\n") == 2
    assert embedded.worker_pid == pid
