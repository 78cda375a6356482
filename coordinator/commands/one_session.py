"""Runs one session for the command line: settings → embedded cluster or a given one → session → exit code."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.commands.own_cluster import Signals, looked_after, redis_of
from coordinator.commands.terminal import TerminalApprover
from coordinator.commands.timeline import Timeline
from coordinator.embedded import Embedded
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.model_choice import choose_model
from coordinator.errors import ConfigError
from coordinator.session.approvals import Always, Approver, Elsewhere, Never
from coordinator.session.loop import Ending
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.runner import SessionRunner
from coordinator.settings import Settings
from coordinator.wiring import open_cluster
from tools.loading import LoadedTools, ToolsUnusable, load_tools

HURRY_S = 3.0
"""How long a session that was cancelled twice may still take to end its box."""


@dataclass(frozen=True)
class Command:
    """One session as the command line asked for it."""

    request: SessionRequest
    model: ModelSettings
    approve: str
    """ask, always, never or wait."""
    is_live: bool = True
    """Redraw on a terminal what still runs; else every line once."""
    tools: LoadedTools | None = None
    """The session's tools; None is the built-in ones and those of installed packages."""


def run_command(command: Command, settings: Settings) -> SessionResult:
    """Run the session and return its result; Ctrl-C and SIGTERM cancel it, a second one breaks it off.

    Raises:
        SandhogError: it could not be begun.
    """
    return asyncio.run(_run(command, settings))


async def _run(command: Command, settings: Settings) -> SessionResult:
    # First of all: what is started below must also be ended when a signal comes while it starts.
    signals = Signals()
    with redis_of(settings, command.tools) as (redis_url, embedded):
        return await _run_on(redis_url, embedded, command, settings, signals)


async def _run_on(
    redis_url: str, embedded: Embedded | None, command: Command, settings: Settings, signals: Signals
) -> SessionResult:
    timeline = Timeline(sys.stderr, is_live=None if command.is_live else False)
    model = ModelClient(await choose_model(command.model))
    secrets = [value for value in (command.model.api_key, os.environ.get("OPENAI_API_KEY")) if value]
    try:
        async with open_cluster(redis_url, settings.state_dir, command.tools) as cluster:
            runner = SessionRunner(
                command.request,
                cluster=cluster,
                model=model,
                approver=_approver(command.approve, timeline, signals.first),
                sinks=[timeline],
                secrets=secrets,
            )
            async with looked_after(embedded) as broken:
                return await _attended(runner, signals, broken)
    finally:
        # What cannot be drawn any more is no reason to lose the result.
        with contextlib.suppress(OSError, ValueError):
            timeline.close()
        await model.close()


async def _attended(runner: SessionRunner, signals: Signals, broken: "asyncio.Task[None]") -> SessionResult:
    """Return the session's result; broken off when its cluster is gone or a second signal came.

    Raises:
        ConfigError: the embedded cluster could not begin.
    """
    session = asyncio.create_task(runner.run(signals.first), name=f"session {runner.session_id}")
    second = asyncio.create_task(signals.second.wait())
    try:
        await asyncio.wait({session, second, broken}, return_when=asyncio.FIRST_COMPLETED)
        if not session.done():
            if broken.done():
                fault = broken.exception()
                runner.abandon(Ending("failed", f"cluster: {fault}"), finish_s=0.0)
                await session
                if isinstance(fault, ConfigError):
                    raise fault
            else:
                runner.abandon(Ending("cancelled", "cancelled twice"), finish_s=HURRY_S)
        return await session
    finally:
        second.cancel()


def _approver(approve: str, timeline: Timeline, cancelled: asyncio.Event) -> Approver:
    match approve:
        case "always":
            return Always()
        case "ask":
            return TerminalApprover(timeline, cancelled, sys.stdin, sys.stderr)
        case "wait":
            return Elsewhere()
        case _:
            return Never()


def check_directory(directory: Path) -> Path:
    """Return the directory as an absolute path.

    Raises:
        ConfigError: there is none, or none that can be looked at.
    """
    try:
        absolute = directory.expanduser().resolve()
        is_directory = absolute.is_dir()
    except (OSError, RuntimeError) as exc:
        raise ConfigError(f"--workspace {directory}: it cannot be used: {exc}") from exc
    if not is_directory:
        raise ConfigError(f"--workspace {directory}: there is no such directory.")
    return absolute


def own_tools(paths: Sequence[str | Path]) -> LoadedTools:
    """Return the built-in tools, those of installed packages and those of these files.

    Raises:
        ConfigError: they cannot be loaded; says which and why.
    """
    try:
        return load_tools(paths)
    except ToolsUnusable as exc:
        raise ConfigError(f"Your own tools cannot be loaded: {exc}") from exc
