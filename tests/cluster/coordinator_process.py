"""A coordinator as a process of its own, to be killed: begins one session, or adopts those of others.

`coordinator_process.py run|adopt REDIS_URL STATE_DIR ENDPOINT [PROJECT]`: prints `session ID` when one begins, and each
session's result as one JSON line when it ends.
"""

import asyncio
import sys
from pathlib import Path

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.session.approvals import Never
from coordinator.session.model_table import ModelTable
from coordinator.session.request import SessionRequest
from coordinator.session.resume import continuing
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TAKEOVER
from coordinator.session.takeover import Adopted, TakeoverWatch
from coordinator.session.workspace_choice import Chosen
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from worker.contract.orders import Policy, WorkspaceMode


async def play(runner: SessionRunner) -> None:
    print(f"session {runner.session_id}", flush=True)
    result = await runner.run(asyncio.Event())
    print(result.model_dump_json(), flush=True)


async def begin(cluster: Cluster, model: ModelClient, project: Path) -> None:
    chosen = Chosen(project, WorkspaceMode.BIND, "the test says so", Policy.BOXED, False)
    request = SessionRequest(str(project), chosen, DEFAULT_IMAGE, is_adoptable=True)
    await play(SessionRunner(request, cluster=cluster, model=model, approver=Never(), sinks=[]))


async def adopt(cluster: Cluster, model: ModelClient) -> None:
    running = set()

    async def go_on(adopted: Adopted) -> None:
        runner = continuing(
            adopted.session_id,
            adopted.saved.to_request(ModelTable()),
            generation=adopted.generation,
            cluster=cluster,
            model=model,
            approver=Never(),
            sinks=[],
            by=TAKEOVER,
        )
        running.add(asyncio.create_task(play(runner)))

    async with TakeoverWatch(cluster, go_on):
        print("watching", flush=True)
        await asyncio.Event().wait()


async def main() -> None:
    mode, redis_url, state_dir, base_url, *more = sys.argv[1:]
    model = ModelClient(ModelSettings("scripted", base_url=base_url))
    async with open_cluster(redis_url, Path(state_dir)) as cluster:
        await (begin(cluster, model, Path(more[0])) if mode == "run" else adopt(cluster, model))


if __name__ == "__main__":
    asyncio.run(main())
