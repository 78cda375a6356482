"""`sandhog resume`: a session goes on that did not complete, or that gets a new message."""

import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from coordinator.commands import box_flags, run_flags
from coordinator.commands.completing import SessionId
from coordinator.commands.kept import session_named
from coordinator.commands.one_session import Command, Going, own_tools, run_command
from coordinator.commands.outcome import finish
from coordinator.commands.run_flags import Approve
from coordinator.commands.terminal import is_terminal
from coordinator.endpoint.model import ModelSettings
from coordinator.session.box_options import read_env
from coordinator.session.keeping import Of
from coordinator.session.model_table import read_model_table
from coordinator.session.resume import Resumable, check, find
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


# As long as it has flags: each is a parameter with its help, and the body only puts them together.
@app.command()
def resume(
    session_id: SessionId,
    message: Annotated[str, typer.Argument(help="What you say to it; a session that has completed needs it.")] = "",
    model: run_flags.Model = None,
    approve: run_flags.Answerer = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Further model replies at most.")] = None,
    env: box_flags.Env = None,
    env_file: box_flags.EnvFile = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Also take it from a process that runs it.")] = False,
    keep_box: run_flags.KeepBox = None,
    keep_box_of: run_flags.KeepBoxOf = Of.ALL,
    json: run_flags.Json = False,
) -> None:
    """Go on with a session that stopped, failed, was cancelled or killed, or that has completed, with a message.

    Nothing runs twice: finished answers are collected, and what may have run is said to the model as that. The
    endpoint comes from OPENAI_BASE_URL and OPENAI_API_KEY, everything else from the session. Exit codes as of `run`.
    """
    settings = read_settings()
    found = find(settings.state_dir, session_named(settings.state_dir, session_id))
    request = found.saved.to_request(read_model_table(settings.models_file, settings.context_tokens))
    if max_steps is not None:
        request = replace(request, limits=request.limits.model_copy(update={"steps": max_steps}))
    values = read_env(env or (), env_file or (), os.environ) or None
    check(found, request, message=message, env=values)
    on_terminal = is_terminal(sys.stdin, sys.stderr)
    command = Command(
        request,
        endpoint_of(found, model or settings.model),
        (approve or (Approve.ASK if on_terminal else Approve.NEVER)).value,
        is_live=not json,
        tools=own_tools([*settings.tool_paths, *request.tool_paths]),
        goes_on=Going(found, message, values, take_over),
        talk="further" if on_terminal and not json else "once",
        stay=run_flags.stay_of(keep_box, keep_box_of),
    )
    finish(run_command(command, settings), as_json=json)


def endpoint_of(found: Resumable, model: str | None) -> ModelSettings:
    """Return how the model is asked: as before, with this process's key and, where it names one, its address."""
    kept = found.saved.to_model(os.environ.get("OPENAI_API_KEY") or None)
    kept = replace(kept, base_url=os.environ.get("OPENAI_BASE_URL") or kept.base_url, model=model or kept.model)
    if found.saved.headers:
        names = ", ".join(found.saved.headers)
        print(f"sandhog: these headers were not kept, and the endpoint does not get them: {names}", file=sys.stderr)
    return kept
