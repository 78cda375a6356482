"""A coordinator to be killed: runs the sessions it is told of and goes on with those of others that died.

`python -m tests.chaos.coordinator REDIS_URL STATE_DIR ENDPOINT`. Reads `run PROJECT` and `cancel PROJECT` from standard
input, a line each, and ends once that is closed and nothing runs. Writes a JSON object a line: `ready`, `began`,
`placed`, `replied`, `call` and `ended`, each with the machine's monotonic time `at`.
"""

import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from coordinator.cluster.parts import Cluster
from coordinator.ending import end
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.session.approvals import Never
from coordinator.session.call_events import CallFinished
from coordinator.session.events import Event
from coordinator.session.limits import Limits
from coordinator.session.loop import Ending
from coordinator.session.model_table import ModelTable
from coordinator.session.request import SessionRequest
from coordinator.session.resume import continuing
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TAKEOVER, SessionPlaced
from coordinator.session.step_events import ModelReplied
from coordinator.session.takeover import Adopted, TakeoverWatch
from coordinator.session.workspace_choice import Chosen
from coordinator.settings import DEFAULT_IMAGE
from coordinator.wiring import open_cluster
from tests.chaos.harms import PROFILE
from worker.contract.logs import begin_logs
from worker.contract.orders import Policy, WorkspaceMode

STEPS = 1_000
DRAIN_S = 2.0
LEFT = "the coordinator ended"


def is_copied(project: str) -> bool:
    """Return whether a project's session works on a private copy: every other one does."""
    return int(project.removeprefix("p")) % 2 == 0


def tell(what: str, **fields: Any) -> None:
    """Write one line for the harness."""
    print(json.dumps({"what": what, "at": time.monotonic(), **fields}), flush=True)


class Sink:
    """Tells the harness of a session's calls and places."""

    def __init__(self, project: str) -> None:
        self._project = project

    def __call__(self, event: Event) -> None:
        match event:
            case CallFinished():
                tell("call", project=self._project, status=event.status, code=event.error_code)
            case SessionPlaced():
                tell("placed", project=self._project, node=event.node)
            case ModelReplied():
                tell("replied", project=self._project)


class Coordinator:
    """Runs sessions on one cluster."""

    def __init__(self, cluster: Cluster, model: ModelClient) -> None:
        self._cluster = cluster
        self._model = model
        self._cancels: dict[str, asyncio.Event] = {}
        self._running: dict[asyncio.Task[None], SessionRunner] = {}
        self.is_draining = False
        """Whether it takes over nothing any more."""

    def begin(self, project: Path) -> None:
        """Begin a session on a project's directory, or on a private copy, which another node can go on with."""
        mode = WorkspaceMode.COPY if is_copied(project.name) else WorkspaceMode.BIND
        chosen = Chosen(project, mode, "chaos", Policy.BOXED, False)
        request = SessionRequest(
            project.name,
            chosen,
            DEFAULT_IMAGE,
            Limits(steps=STEPS),
            is_adoptable=True,
            has_project_notes=False,
            task_depth=0,
            keep="always",
            profile=PROFILE,
        )
        sinks = [Sink(project.name)]
        runner = SessionRunner(request, cluster=self._cluster, model=self._model, approver=Never(), sinks=sinks)
        self._start(project.name, runner)

    async def go_on(self, adopted: Adopted) -> None:
        """Go on with a session whose coordinator died."""
        request = adopted.saved.to_request(ModelTable())
        project = request.workspace.directory.name
        runner = continuing(
            adopted.session_id,
            request,
            generation=adopted.generation,
            cluster=self._cluster,
            model=self._model,
            approver=Never(),
            sinks=[Sink(project)],
            by=TAKEOVER,
        )
        self._start(project, runner)

    def cancel(self, project: str) -> None:
        """Cancel a project's session if it runs here."""
        if project in self._cancels:
            self._cancels[project].set()

    def _start(self, project: str, runner: SessionRunner) -> None:
        self._cancels[project] = asyncio.Event()
        tell("began", project=project, session=runner.session_id)
        task = asyncio.create_task(self._play(project, runner))
        self._running[task] = runner
        task.add_done_callback(self._running.pop)

    async def _play(self, project: str, runner: SessionRunner) -> None:
        status, reason = "broken", ""
        try:
            result = await runner.run(self._cancels[project])
            status, reason = result.status, result.stop_reason
        except Exception as exc:
            logging.exception("a session broke")
            reason = repr(exc)
        if reason != LEFT:
            tell("ended", project=project, session=runner.session_id, status=status, reason=reason)

    async def drain(self) -> None:
        """Wait a while for what runs, as a server does."""
        if self._running:
            await asyncio.wait(self._running, timeout=DRAIN_S)

    async def leave(self) -> None:
        """Leave what still runs for another coordinator to go on with."""
        for runner in self._running.values():
            runner.abandon(Ending("failed", LEFT, is_lost=True), finish_s=0.0)
        if self._running:
            await asyncio.wait(self._running)

    async def obey(self, reader: asyncio.StreamReader) -> None:
        """Do what standard input says; return once that is closed and nothing runs."""
        while line := (await reader.readline()).decode().split():
            try:
                match line:
                    case ["run", project]:
                        self.begin(Path(project))
                    case ["cancel", project]:
                        self.cancel(project)
            except Exception as exc:
                # A session that cannot begin: the disk is full.
                tell("ended", project=Path(line[1]).name, session="", status="refused", reason=str(exc))
        while self._running:
            await asyncio.sleep(0.05)


async def main() -> None:
    """Run until standard input ends and all sessions are over, or SIGTERM comes: then drain and leave the rest."""
    begin_logs("text", "info")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    redis_url, state_dir, base_url = sys.argv[1:]
    model = ModelClient(ModelSettings("scripted", base_url=base_url))
    loop, reader, asked_to_end = asyncio.get_running_loop(), asyncio.StreamReader(), asyncio.Event()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, asked_to_end.set)
    async with open_cluster(redis_url, Path(state_dir)) as cluster:
        coordinator = Coordinator(cluster, model)
        async with TakeoverWatch(cluster, coordinator.go_on, lambda: 0 if coordinator.is_draining else 1_000):
            tell("ready")
            obeying = asyncio.create_task(coordinator.obey(reader))
            ending = asyncio.create_task(asked_to_end.wait())
            await asyncio.wait({obeying, ending}, return_when=asyncio.FIRST_COMPLETED)
            if obeying.done():
                obeying.result()
            else:
                coordinator.is_draining = True
                await end(obeying)
                await coordinator.drain()
            await end(ending)
        # Nothing is taken over any more that would have to be left, too.
        await coordinator.leave()
    await model.close()


if __name__ == "__main__":
    asyncio.run(main())
