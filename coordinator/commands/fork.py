"""`sandhog fork`: a session goes on twice: from its last step, in a copy of its workspace."""

import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from coordinator.cluster.parts import Cluster
from coordinator.commands import box_flags, run_flags
from coordinator.commands.acting import keep_action
from coordinator.commands.completing import SessionId
from coordinator.commands.elsewhere import ask_copy, living
from coordinator.commands.kept import session_named
from coordinator.commands.one_session import Command, Going, own_tools, run_command
from coordinator.commands.outcome import finish
from coordinator.commands.resume import endpoint_of
from coordinator.commands.run_flags import Approve
from coordinator.commands.terminal import is_terminal
from coordinator.errors import SandhogError
from coordinator.session.box_options import read_env
from coordinator.session.forking import copy_kept, demand_forkable, discard, lay_out, request_of, step_of
from coordinator.session.model_table import read_model_table
from coordinator.session.principal import LOCAL
from coordinator.session.request import new_session_id
from coordinator.session.result import SessionResult
from coordinator.session.resume import find
from coordinator.session.saved import NAME as SAVED
from coordinator.settings import Settings, read_settings

app = typer.Typer(add_completion=False)


# As long as it has flags: each is a parameter with its help, and the body only puts them together.
@app.command()
def fork(
    session_id: SessionId,
    prompt: Annotated[str, typer.Argument(help="What you say to the fork.")],
    at_step: Annotated[
        int | None,
        typer.Option(min=1, help="The last step that the fork knows: the last one that made calls, or a later one."),
    ] = None,
    model: run_flags.Model = None,
    approve: run_flags.Answerer = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Model replies of the fork at most.")] = None,
    keep: run_flags.Keep = False,
    env: box_flags.Env = None,
    env_file: box_flags.EnvFile = None,
    json: run_flags.Json = False,
) -> None:
    """Let a session go on twice: a new session knows what this one knows, and works on a copy of its workspace.

    The session itself is not touched. One that runs is copied between two steps, while its commands stand still; of one
    that has ended the private copy must still be there (`run --keep`). Exit codes as of `run`.
    """
    settings = read_settings()
    parent, target = session_named(settings.state_dir, session_id), new_session_id()
    found = find(settings.state_dir, parent)
    is_live = bool(living(settings, [parent]))
    demand_forkable(found, at_step, is_live=is_live)
    request = request_of(found, read_model_table(settings.models_file, settings.context_tokens))
    request = replace(request, principal=LOCAL, is_adoptable=False, keep="always" if keep else "unfinished")
    if max_steps is not None:
        request = replace(request, limits=request.limits.model_copy(update={"steps": max_steps}))
    endpoint = endpoint_of(found, model or settings.model)
    values = read_env(env or (), env_file or (), os.environ) or None
    keep_action(settings.state_dir, "fork", session=parent, detail=f"as {target}")
    last = ask_copy(settings, parent, target) if is_live else None
    on_terminal = is_terminal(sys.stdin, sys.stderr)

    async def begin(cluster: Cluster) -> Going:
        if not is_live:
            await copy_kept(found, cluster, target)
        # What a session that runs did since it was copied is not taken.
        latest = find(settings.state_dir, parent)
        lay_out(latest, target, request, endpoint, step_of(latest.reading.entries, at_step, last), env=values)
        return Going(find(settings.state_dir, target), prompt, by="sandhog fork")

    command = Command(
        request,
        endpoint,
        (approve or (Approve.ASK if on_terminal else Approve.NEVER)).value,
        is_live=not json,
        tools=own_tools([*settings.tool_paths, *request.tool_paths]),
        begins=begin,
        talk="further" if on_terminal and not json else "once",
    )
    finish(_run(command, settings, target), as_json=json)


def _run(command: Command, settings: Settings, target: str) -> SessionResult:
    """Run the fork; of one that could not be made nothing is left."""
    try:
        return run_command(command, settings)
    except SandhogError:
        if not (settings.state_dir / "sessions" / target / SAVED).exists():
            discard(settings.state_dir, target)
        raise
