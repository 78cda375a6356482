"""Runs `sandhog mcp`: cluster → box → server for one client, and all of it to its end."""

import asyncio
import os
import secrets
import sys
from dataclasses import dataclass

from coordinator.commands.acting import keep_action
from coordinator.commands.own_cluster import Signals, looked_after, redis_of
from coordinator.ending import end
from coordinator.mcp.http import HOST, PATH, HttpServer, listen
from coordinator.mcp.served_box import ServedBox
from coordinator.mcp.server import make_server, serve_stdio
from coordinator.session.approvals import Always, Approver, Elsewhere, Never
from coordinator.session.request import SessionRequest
from coordinator.settings import Settings
from coordinator.wiring import open_cluster
from tools.loading import LoadedTools
from worker.contract.orders import FinishOutcome


@dataclass(frozen=True)
class Serving:
    """What the command line says."""

    request: SessionRequest
    tools: LoadedTools
    approve: str
    """always, never or wait."""
    port: int | None
    """None for stdio."""
    token: str | None
    """None makes a new one."""


def serve(serving: Serving, settings: Settings) -> None:
    """Serve until the client leaves or a signal comes.

    Raises:
        SandhogError: it cannot begin, or its cluster is gone.
    """
    asyncio.run(_serve(serving, settings))
    sys.stderr.flush()
    # A thread may still wait for a line of the client's that never comes; it would hold up the end for ever.
    os._exit(0)


async def _serve(serving: Serving, settings: Settings) -> None:
    signals = Signals()
    with redis_of(settings, serving.tools) as (redis_url, embedded):
        # One call's cancel fences that call alone. No more is needed: a served box sends each call by itself, never a
        # chain whose next link could start meanwhile.
        async with open_cluster(redis_url, settings.state_dir, serving.tools, cancels_alone=True) as cluster:
            box = ServedBox(serving.request, cluster=cluster, approver=_approver(serving.approve))
            place = serving.request.workspace.directory
            keep_action(settings.state_dir, "run", session=box.session_id, detail=f"for an MCP client, on {place}")
            box.prepare()
            client = asyncio.create_task(_client(serving, box), name="client")
            stop = asyncio.create_task(signals.first.wait())
            async with looked_after(embedded) as broken:
                try:
                    await asyncio.wait({client, stop, broken}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await end(client, stop)
                    _tell(await box.close(why="the client left" if not stop.done() else "a signal came"), serving)
                for task in (client, broken):
                    if task.done() and not task.cancelled() and (fault := task.exception()) is not None:
                        raise fault


async def _client(serving: Serving, box: ServedBox) -> None:
    server = make_server(box)
    if serving.port is None:
        await serve_stdio(server)
        return
    token = serving.token or secrets.token_urlsafe(24)
    with listen(serving.port) as listener:
        http = HttpServer(server, token)
        where = f"http://{HOST}:{listener.getsockname()[1]}{PATH}"
        shown = "" if serving.token else f" with the header `Authorization: Bearer {token}`"
        print(f"sandhog: {box.session_id} is served at {where}{shown}", file=sys.stderr, flush=True)
        try:
            await http.serve([listener])
        except asyncio.CancelledError:
            http.should_exit = True
            raise


def _approver(approve: str) -> Approver:
    match approve:
        case "always":
            return Always()
        case "wait":
            return Elsewhere()
        case _:
            return Never()


def _tell(finished: FinishOutcome, serving: Serving) -> None:
    """Say on standard error what became of the work; standard output is the client's."""
    notes = [*finished.notes, *([finished.error] if finished.error else [])]
    if finished.conflicts:
        notes.append("Nothing was applied: these files changed meanwhile: " + ", ".join(finished.conflicts))
    if finished.changed and finished.patch_path:
        done = "was applied; it is kept" if finished.applied else "is kept"
        notes.append(f"The patch {done} in {finished.patch_path}.")
    for note in notes:
        print(f"sandhog: {note}", file=sys.stderr)
