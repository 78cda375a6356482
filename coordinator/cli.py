"""The `sandhog` command."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from coordinator.commands import box_flags, run_flags
from coordinator.commands.answering import Answer, give, shown, waiting
from coordinator.commands.breakers import list_breakers
from coordinator.commands.demo import DEMO_MODEL, DEMO_NOTICE, DEMO_PROMPT, copy_demo_project, demo_script
from coordinator.commands.explain import explain, rules_of
from coordinator.commands.kept import find_session
from coordinator.commands.run import Command, check_directory, own_tools, run_command
from coordinator.commands.run_flags import Approve
from coordinator.commands.terminal import is_terminal
from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.scripted import ScriptedEndpoint
from coordinator.errors import ConfigError, SandhogError
from coordinator.session.breakers import Listing, table
from coordinator.session.result import SessionResult
from coordinator.session.runner import SessionRequest
from coordinator.session.workspace_choice import Chosen, Wanted, choose
from coordinator.settings import Settings
from coordinator.visible import visible, visible_line
from tools.permission import Policy as ToolPolicy
from tools.permission import Terms
from worker.contract.orders import Policy, WorkspaceMode

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    # A pretty trace would show the values of local variables, keys among them.
    pretty_exceptions_enable=False,
    help="Run coding agents whose tool calls happen in sealed sandboxes.",
)


UNASKED = "sandhog: --approve always: whatever is asked about runs on {directory} itself, as with --policy boxed."


@cli.command()
def run(
    prompt: run_flags.Prompt,
    workspace: run_flags.Workspace = Path(),
    copy: run_flags.Copy = False,
    bind: run_flags.Bind = False,
    as_root: run_flags.AsRoot = False,
    apply: run_flags.Apply = False,
    image: run_flags.Image = None,
    profile: run_flags.Profile = None,
    model: run_flags.Model = None,
    policy: run_flags.PolicyName = None,
    policy_file: run_flags.PolicyFile = None,
    approve: run_flags.Answerer = None,
    max_steps: run_flags.MaxSteps = 50,
    tools: run_flags.Tools = None,
    allow_host: box_flags.AllowHost = None,
    env: box_flags.Env = None,
    env_file: box_flags.EnvFile = None,
    put_file: box_flags.PutFile = None,
    dockerfile: box_flags.Dockerfile = None,
    setup: box_flags.Setup = None,
    setup_network: box_flags.SetupNetwork = None,
    setup_file: box_flags.SetupFile = None,
    setup_timeout: box_flags.SetupTimeout = 900.0,
    json: run_flags.Json = False,
) -> None:
    """Run one session to its end.

    The endpoint comes from OPENAI_BASE_URL and OPENAI_API_KEY. Exit codes: 0 completed, 1 stopped or failed,
    2 bad usage or configuration, 130 interrupted.
    """
    on_terminal = is_terminal(sys.stdin, sys.stderr)
    settings = _settings()
    directory = check_directory(workspace)
    wanted = Wanted(directory, bind=bind, copy=copy, as_root=as_root, policy=policy, is_terminal=on_terminal)
    chosen = choose(wanted, owner_uid=directory.stat().st_uid, own_uid=os.geteuid())
    own = own_tools([*settings.tool_paths, *(tools or ())])
    request = SessionRequest(
        prompt=_prompt(prompt),
        workspace=chosen,
        image=image or settings.image,
        profile=profile or settings.profile,
        max_steps=max_steps,
        apply=apply,
        box=box_flags.box_options(
            allow_host=allow_host,
            env=env,
            env_file=env_file,
            put_file=put_file,
            dockerfile=dockerfile,
            setup=setup,
            setup_network=setup_network,
            setup_file=setup_file,
            setup_timeout_s=setup_timeout,
        ),
        rules=rules_of(policy_file or settings.policy_file, own.registry),
        approval_s=settings.approval_s,
    )
    answerer = approve or (Approve.ASK if on_terminal else Approve.NEVER)
    if answerer is Approve.ALWAYS and chosen.policy is Policy.GUARDED and chosen.mode is WorkspaceMode.BIND:
        print(UNASKED.format(directory=visible_line(str(directory), 200)), file=sys.stderr)
    endpoint = ModelSettings.from_environment(model or settings.model, os.environ)
    endpoint = replace(endpoint, strict_tools=settings.strict_tools)
    command = Command(request, endpoint, answerer.value, is_live=not json, tools=own)
    _finish(run_command(command, settings), as_json=json)


@cli.command()
def demo(image: run_flags.Image = None, json: run_flags.Json = False) -> None:
    """Watch a scripted model mend a small project: the model is scripted, all the rest is real."""
    settings = _settings()
    print(DEMO_NOTICE, file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="sandhog-demo-") as fresh,
        ScriptedEndpoint(demo_script(), model=DEMO_MODEL) as endpoint,
    ):
        directory = copy_demo_project(Path(fresh) / "ledger-project")
        wanted = Wanted(directory, copy=True)
        chosen: Chosen = choose(wanted, owner_uid=directory.stat().st_uid, own_uid=os.geteuid())
        request = SessionRequest(
            prompt=DEMO_PROMPT, workspace=chosen, image=image or settings.image, max_steps=10, apply=False
        )
        command = Command(
            request,
            ModelSettings(DEMO_MODEL, base_url=endpoint.base_url),
            Approve.NEVER.value,
            is_live=not json,
            tools=own_tools([]),
        )
        result = run_command(command, settings)
    _finish(result, as_json=json, is_gone=True)


@cli.command()
def apply(
    session_id: Annotated[str, typer.Argument(help="Session that worked on a private copy.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Put a session's patch into the directory it was made for: all of it, or nothing where something changed since."""
    kept = find_session(_settings().state_dir, session_id)
    text = visible(kept.patch) if sys.stdout.isatty() else kept.patch
    print(text or "The session changed nothing.", end="" if kept.patch else "\n")
    if not kept.patch:
        return
    if not yes and not (
        is_terminal(sys.stdin, sys.stderr) and typer.confirm(f"Apply this to {kept.workspace}?", err=True)
    ):
        raise ConfigError("Nothing was applied: say yes on a terminal, or give --yes.")
    raise typer.Exit(_apply(kept.session_dir, kept.workspace))


@cli.command(name="explain")
def explain_command(
    command: Annotated[str | None, typer.Argument(help="A command as the model would give it to Bash.")] = None,
    policy: Annotated[Policy, typer.Option(help="What decides where no rule does.")] = Policy.GUARDED,
    policy_file: run_flags.PolicyFile = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="As for a session that only reads.")] = False,
) -> None:
    """Say whether a command would run, and why; without a command, check the policy file and its tests."""
    settings = _settings()
    path = policy_file or settings.policy_file
    rules = rules_of(path, own_tools(settings.tool_paths).registry)
    if command is None:
        if path is None:
            raise ConfigError("Give a command, or a --policy-file to check.")
        print(f"{path}: its rules can be used, and its tests hold.")
        return
    _, lines = explain(command, Terms(ToolPolicy(policy.value), rules, read_only))
    print("\n".join(lines))


@cli.command(name="approve")
def approve_command(
    session_id: Annotated[str | None, typer.Argument(help="The session that asks.")] = None,
    call: Annotated[str | None, typer.Argument(help="The call it asks about, such as 3.0.")] = None,
    allow: Annotated[bool | None, typer.Option("--allow/--deny", help="Yes, or no.")] = None,
    always: Annotated[bool, typer.Option("--always", help="With --allow: for the whole session.")] = False,
    note: Annotated[str, typer.Option(help="With --deny: said to the model.")] = "",
) -> None:
    """Answer what a session asks about a call; without a call, list what waits for an answer."""
    settings = _settings()
    if session_id is None or call is None:
        for request in waiting(settings.redis_url, settings.state_dir, session_id):
            print("\n".join(shown(request)))
        return
    if allow is None:
        raise ConfigError("Say --allow or --deny.")
    print(give(settings.redis_url, settings.state_dir, session_id, call, Answer(allow, note, always and allow)))


@cli.command(name="breakers")
def breakers_command(json: run_flags.Json = False) -> None:
    """Show which tools are switched off after faults, and which have faults counted."""
    settings = _settings()
    listed = list_breakers(settings.redis_url, settings.state_dir)
    print(Listing(breakers=listed).model_dump_json() if json else table(listed))


def main() -> None:
    """Run the command; its errors become one line and an exit code."""
    try:
        cli()
    except ConfigError as exc:
        _fail(str(exc), code=2)
    except SandhogError as exc:
        _fail(str(exc), code=1)


def _finish(result: SessionResult, *, as_json: bool, is_gone: bool = False) -> None:
    """Print the outcome and exit; `is_gone`: the directory was a temporary one, nothing can be applied to it."""
    if as_json:
        print(result.model_dump_json())
    else:
        _print_outcome(result, is_gone=is_gone)
    # Here, where a reader that has gone is an error like any other; at the interpreter's end it is a trace.
    sys.stdout.flush()
    raise typer.Exit(result.exit_code)


def _print_outcome(result: SessionResult, *, is_gone: bool) -> None:
    """Say where the work lies: the timeline showed everything else."""
    if result.patch:
        # On a terminal a patch must not be able to draw; in a pipe it must stay a patch.
        print(visible(result.patch) if sys.stdout.isatty() else result.patch, end="")
    if result.applied:
        print(f"The patch was applied to {result.workspace}.", file=sys.stderr)
    print(f"Transcript: {result.transcript}", file=sys.stderr)
    if not result.patch or result.applied or is_gone:
        return
    print(f"Nothing was changed in {result.workspace} ({result.workspace_reason}).", file=sys.stderr)
    print(f"To apply the patch:  sandhog apply {result.session_id}", file=sys.stderr)
    if is_terminal(sys.stdin, sys.stdout, sys.stderr) and typer.confirm("Apply it now?", default=False, err=True):
        _apply(Path(result.transcript).parent, Path(result.workspace))


def _apply(session_dir: Path, directory: Path) -> int:
    """Put a kept result into its directory; return the exit code. The node side's program does it, as on a node."""
    argv = [sys.executable, "-P", "-m", "worker", "apply", str(session_dir), str(directory)]
    return subprocess.run(argv, check=False).returncode


def _prompt(argument: str) -> str:
    prompt = sys.stdin.read() if argument == "-" else argument
    if not prompt.strip():
        raise ConfigError("The prompt is empty.")
    return prompt


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as exc:
        faults = "; ".join(f"SANDHOG_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in exc.errors())
        raise ConfigError(f"A setting is wrong: {faults}") from exc


def _fail(message: str, *, code: int) -> None:
    print(f"sandhog: {message}", file=sys.stderr)
    sys.exit(code)
