"""Runs one session for the command line: settings → embedded cluster or a given one → session → exit code."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.approvals import Always, Approver, Never
from coordinator.embedded import Embedded
from coordinator.errors import ConfigError
from coordinator.model import ModelClient, ModelSettings
from coordinator.result import SessionResult
from coordinator.session import SessionRequest, SessionRunner
from coordinator.settings import Settings
from coordinator.terminal import TerminalApprover
from coordinator.timeline import Timeline
from coordinator.wiring import open_cluster

LOOK_AFTER_S = 0.5


@dataclass(frozen=True)
class Command:
    """One session as the command line asked for it."""

    request: SessionRequest
    model: ModelSettings
    approve: str
    """ask, always or never."""
    is_live: bool = True
    """Redraw on a terminal what still runs; else every line once."""


def run_command(command: Command, settings: Settings) -> SessionResult:
    """Run the session and return its result; Ctrl-C and SIGTERM cancel it.

    Raises:
        SandhogError: it could not be begun, or the embedded cluster broke down.
    """
    with _redis(settings) as (redis_url, embedded):
        return asyncio.run(_run(command, settings, redis_url, embedded))


@contextlib.contextmanager
def _redis(settings: Settings) -> Iterator[tuple[str, Embedded | None]]:
    if settings.redis_url:
        yield settings.redis_url, None
        return
    embedded = Embedded(settings.state_dir, dead_man_s=settings.dead_man_s)
    try:
        yield embedded.redis_url, embedded
    finally:
        # A second Ctrl-C must not stop the clean-up half-way.
        with _signals_ignored():
            embedded.close()


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(command: Command, settings: Settings, redis_url: str, embedded: Embedded | None) -> SessionResult:
    cancelled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancelled.set)
    timeline = Timeline(sys.stderr, is_live=None if command.is_live else False)
    model = ModelClient(command.model)
    secrets = [value for value in (command.model.api_key, os.environ.get("OPENAI_API_KEY")) if value]
    try:
        async with open_cluster(redis_url, settings.state_dir) as cluster:
            runner = SessionRunner(
                command.request,
                cluster=cluster,
                model=model,
                approver=_approver(command.approve, timeline, cancelled),
                sinks=[timeline],
                secrets=secrets,
            )
            async with _looked_after(embedded) as broken:
                session = asyncio.create_task(runner.run(cancelled))
                await asyncio.wait({session, broken}, return_when=asyncio.FIRST_COMPLETED)
                if not session.done():
                    session.cancel()
                    await asyncio.gather(session, return_exceptions=True)
                    broken.result()
                return session.result()
    finally:
        timeline.close()
        await model.close()


@contextlib.asynccontextmanager
async def _looked_after(embedded: Embedded | None) -> "AsyncIterator[asyncio.Task[None]]":
    """Yield a task that restarts a dead worker and fails when the embedded cluster cannot be kept up."""

    async def look_after() -> None:
        while True:
            if embedded is not None:
                words = embedded.look_after()
                if words is not None:
                    print(f"sandhog: {words}", file=sys.stderr)
            await asyncio.sleep(LOOK_AFTER_S)

    task = asyncio.create_task(look_after(), name="look after the worker")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _approver(approve: str, timeline: Timeline, cancelled: asyncio.Event) -> Approver:
    match approve:
        case "always":
            return Always()
        case "ask":
            return TerminalApprover(timeline, cancelled, sys.stdin, sys.stderr)
        case _:
            return Never()


def check_directory(directory: Path) -> Path:
    """Return the directory as an absolute path.

    Raises:
        ConfigError: there is none.
    """
    absolute = directory.expanduser().resolve()
    if not absolute.is_dir():
        raise ConfigError(f"--workspace {directory}: there is no such directory.")
    return absolute
