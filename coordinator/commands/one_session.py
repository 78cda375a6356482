"""Runs one session for the command line: settings → embedded cluster or a given one → session → exit code."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coordinator.audit import Action
from coordinator.cluster.parts import Cluster
from coordinator.commands.acting import keep_action
from coordinator.commands.forkable import forkable
from coordinator.commands.messages import ChatSignals, Messages
from coordinator.commands.own_cluster import Signals, looked_after, redis_of
from coordinator.commands.staying import Staying
from coordinator.commands.terminal import TerminalApprover
from coordinator.commands.timeline import Timeline
from coordinator.commands.typed_lines import TypedLines
from coordinator.embedded import Embedded
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.model_choice import choose_model
from coordinator.errors import ConfigError
from coordinator.session.approvals import Always, Approver, Decided, Elsewhere, Never
from coordinator.session.conversation import NextMessage
from coordinator.session.events import Event, EventSink
from coordinator.session.keeping import BoxStay
from coordinator.session.loop import Ending
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.resume import BY_COMMAND, Resumable, resume
from coordinator.session.runner import SessionRunner
from coordinator.settings import Settings
from coordinator.wiring import open_cluster
from tools.loading import LoadedTools, ToolsUnusable, load_tools
from worker.contract.approvals import ApprovalRequest

HURRY_S = 3.0
"""How long a session that was cancelled twice may still take to end its box."""


@dataclass(frozen=True)
class Going:
    """A session that goes on."""

    found: Resumable
    message: str = ""
    env: Mapping[str, str] | None = None
    """Values of the box's variables, where they are given anew."""
    is_forced: bool = False
    """Also take it from an owner that lives."""
    by: str = BY_COMMAND
    """Who goes on, for the transcript."""


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
    goes_on: Going | None = None
    """The session that goes on; None begins a new one."""
    begins: Callable[[Cluster], Awaitable[Going]] | None = None
    """Makes the session that goes on, once there is a cluster."""
    talk: Literal["once", "further", "chat"] = "once"
    """Whether a person says more when a turn has ended: no, if they like to, or until they leave."""
    stay: BoxStay | None = None
    """Lets the box stay when nothing more is said; None lets it go."""


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
    lines = TypedLines(sys.stdin)
    messages = _messages(command, lines, timeline, signals)
    if command.talk == "chat" and command.goes_on is None and not command.request.prompt:
        said = await messages.next() if messages else None
        if said is None:
            raise ConfigError("Nothing was said.")
        command = replace(command, request=replace(command.request, prompt=said))
    model = ModelClient(await choose_model(command.model))
    cancelled = messages.signals.turn if messages and messages.signals else signals.first
    approver = _approver(command.approve, timeline, cancelled, lines, settings.state_dir)
    try:
        async with open_cluster(redis_url, settings.state_dir, command.tools) as cluster:
            if command.begins is not None:
                command = replace(command, goes_on=await command.begins(cluster))
            ask = messages.next if messages else None
            staying = Staying(command.stay, settings, cancelled, timeline, ask) if command.stay else None
            session = _Around(model, approver, [_shown(timeline, messages)], staying.next if staying else ask)
            runner = await _runner(command, cluster, session)
            if staying is not None:
                staying.session = runner.session_id
            keep_action(
                settings.state_dir,
                "run" if command.goes_on is None else "resume",
                session=runner.session_id,
                detail=str(command.request.workspace.directory),
            )
            own = {runner.session_id: runner}
            async with looked_after(embedded) as broken, forkable(cluster, own.get):
                return await _attended(runner, cancelled, signals.second, broken)
    finally:
        # What cannot be drawn any more is no reason to lose the result.
        with contextlib.suppress(OSError, ValueError):
            timeline.close()
        await model.close()


@dataclass(frozen=True)
class _Around:
    """What a session has around it here."""

    model: ModelClient
    approver: Approver
    sinks: list[EventSink]
    next_message: NextMessage | None


async def _runner(command: Command, cluster: Cluster, around: _Around) -> SessionRunner:
    """Return the runner of a new session, or of one that goes on.

    Raises:
        SandhogError: it cannot begin, or not go on.
    """
    secrets = [value for value in (command.model.api_key, os.environ.get("OPENAI_API_KEY")) if value]
    if command.goes_on is None:
        return SessionRunner(
            command.request,
            cluster=cluster,
            model=around.model,
            approver=around.approver,
            sinks=around.sinks,
            secrets=secrets,
            next_message=around.next_message,
        )
    return await resume(
        command.goes_on.found,
        command.request,
        cluster=cluster,
        model=around.model,
        approver=around.approver,
        sinks=around.sinks,
        secrets=secrets,
        next_message=around.next_message,
        message=command.goes_on.message,
        env=command.goes_on.env,
        is_forced=command.goes_on.is_forced,
        by=command.goes_on.by,
    )


def _shown(timeline: Timeline, messages: Messages | None) -> EventSink:
    """Return the timeline, without what somebody who types the messages knows."""
    if messages is None:
        return timeline

    def show(event: Event) -> None:
        if not messages.is_known(event):
            timeline(event)

    return show


def _messages(command: Command, lines: TypedLines, timeline: Timeline, signals: Signals) -> Messages | None:
    """Return what asks a person for further messages; None where nobody is asked."""
    match command.talk:
        case "once":
            return None
        case "further":
            return Messages(lines, sys.stderr, timeline, signals.first)
        case "chat":
            chat = ChatSignals()
            chat.take(signals)
            return Messages(lines, sys.stderr, timeline, chat.leave, is_chat=True, signals=chat)


async def _attended(
    runner: SessionRunner, cancelled: asyncio.Event, broken_off: asyncio.Event, broken: "asyncio.Task[None]"
) -> SessionResult:
    """Return the session's result; broken off when its cluster is gone or a second signal came.

    Raises:
        ConfigError: the embedded cluster could not begin.
    """
    session = asyncio.create_task(runner.run(cancelled), name=f"session {runner.session_id}")
    second = asyncio.create_task(broken_off.wait())
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


def _approver(
    approve: str, timeline: Timeline, cancelled: asyncio.Event, lines: TypedLines, state_dir: Path
) -> Approver:
    def keep(request: ApprovalRequest, decided: Decided) -> None:
        lasting = ", for the session" if decided.is_lasting else ""
        answer: Action = "allow" if decided.is_allowed else "deny"
        keep_action(state_dir, answer, session=request.session, detail=f"call {request.name}{lasting}")

    match approve:
        case "always":
            return Always()
        case "ask":
            return TerminalApprover(timeline, cancelled, lines, sys.stderr, keep)
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
