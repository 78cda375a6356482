"""`sandhog run`: one session, from its flags to its outcome."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coordinator.commands import box_flags, model_flags, repo_flags, run_flags
from coordinator.commands.explain import rules_of
from coordinator.commands.one_session import Command, check_directory, own_tools, run_command
from coordinator.commands.outcome import finish
from coordinator.commands.run_flags import Approve
from coordinator.commands.terminal import is_terminal
from coordinator.errors import ConfigError
from coordinator.session.keeping import Of
from coordinator.session.limits import Limits
from coordinator.session.mcp_settings import read_mcp_config
from coordinator.session.model_table import read_model_table
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Wanted, choose
from coordinator.settings import read_settings
from coordinator.visible import visible_line
from worker.contract.orders import Policy, WorkspaceMode

app = typer.Typer(add_completion=False)

UNASKED = "sandhog: --approve always: whatever is asked about runs on {directory} itself, as with --policy boxed."


# As long as it has flags: each is a parameter with its help, and the body only puts them together.
@app.command()
def run(
    prompt: run_flags.Prompt,
    workspace: run_flags.Workspace = Path(),
    repo: repo_flags.Repo = None,
    ref: repo_flags.Ref = None,
    credential: repo_flags.Credential = None,
    copy: run_flags.Copy = False,
    bind: run_flags.Bind = False,
    as_root: run_flags.AsRoot = False,
    apply: run_flags.Apply = False,
    keep: run_flags.Keep = False,
    keep_box: run_flags.KeepBox = None,
    keep_box_of: run_flags.KeepBoxOf = Of.ALL,
    image: run_flags.Image = None,
    profile: run_flags.Profile = None,
    pin: run_flags.Pin = None,
    model: run_flags.Model = None,
    policy: run_flags.PolicyName = None,
    policy_file: run_flags.PolicyFile = None,
    approve: run_flags.Answerer = None,
    max_steps: run_flags.MaxSteps = 50,
    max_calls: run_flags.MaxCalls = None,
    max_tokens_in: run_flags.MaxTokensIn = None,
    max_tokens_out: run_flags.MaxTokensOut = None,
    max_cost: run_flags.MaxCost = None,
    max_time: run_flags.MaxTime = None,
    context_tokens: run_flags.ContextTokens = None,
    project_instructions: run_flags.ProjectInstructions = True,
    tools: run_flags.Tools = None,
    mcp_config: run_flags.McpConfig = None,
    system: model_flags.System = None,
    no_stream: model_flags.NoStream = False,
    temperature: model_flags.Temperature = None,
    top_p: model_flags.TopP = None,
    max_tokens: model_flags.MaxTokens = None,
    reasoning_effort: model_flags.ReasoningEffort = None,
    seed: model_flags.Seed = None,
    stop: model_flags.Stop = None,
    tool_choice: model_flags.ToolChoice = None,
    first_tool_choice: model_flags.FirstToolChoice = None,
    no_parallel_tool_calls: model_flags.NoParallelToolCalls = False,
    extra_body: model_flags.ExtraBody = None,
    header: model_flags.Header = None,
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
    is_chat: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run one session to its end.

    The endpoint comes from OPENAI_BASE_URL and OPENAI_API_KEY. Exit codes: 0 completed, 1 stopped or failed,
    2 bad usage or configuration, 130 interrupted.
    """
    on_terminal = is_terminal(sys.stdin, sys.stderr)
    settings = read_settings()
    directory = check_directory(workspace)
    wanted = Wanted(directory, bind=bind, copy=copy, as_root=as_root, policy=policy, is_terminal=on_terminal)
    fetched = repo_flags.chosen_repository(repo, ref, credential, wanted, apply=apply)
    chosen = fetched[0] if fetched else choose(wanted, owner_uid=directory.stat().st_uid, own_uid=os.geteuid())
    own = own_tools([*settings.tool_paths, *(tools or ())])
    parameters = model_flags.model_parameters(
        system=system,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        reasoning_effort=reasoning_effort,
        seed=seed,
        stop=stop,
        tool_choice=tool_choice,
        first_tool_choice=first_tool_choice,
        no_parallel_tool_calls=no_parallel_tool_calls,
        extra_body=extra_body,
        header=header,
    )
    parameters.check_tools(own.registry.names())
    request = SessionRequest(
        prompt=prompt if is_chat else _prompt(prompt),
        tool_paths=tuple(os.fspath(path.absolute()) for path in tools or ()),
        workspace=chosen,
        source=fetched[1] if fetched else None,
        keep="always" if keep else "unfinished",
        image=image or settings.image,
        profile=profile or settings.profile,
        pins=run_flags.pins_of(pin or ()),
        limits=Limits(
            steps=max_steps,
            calls=max_calls,
            tokens_in=max_tokens_in,
            tokens_out=max_tokens_out,
            cost_usd=max_cost,
            time_s=max_time,
        ),
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
        ).with_mcp(read_mcp_config(mcp_config or settings.mcp_config, os.environ)),
        rules=rules_of(policy_file or settings.policy_file, own.registry),
        approval_s=settings.approval_s,
        budgets=settings.budgets,
        parameters=parameters,
        task_depth=settings.task_depth,
        models=read_model_table(settings.models_file, settings.context_tokens),
        context_tokens=context_tokens,
        has_project_notes=project_instructions,
    )
    answerer = approve or (Approve.ASK if on_terminal else Approve.NEVER)
    if answerer is Approve.ALWAYS and chosen.policy is Policy.GUARDED and chosen.mode is WorkspaceMode.BIND:
        print(UNASKED.format(directory=visible_line(str(directory), 200)), file=sys.stderr)
    endpoint = model_flags.model_settings(settings, model, stream=not no_stream)
    talk = _talk(is_chat=is_chat, may_ask=on_terminal and not json and prompt != "-")
    stay = run_flags.stay_of(keep_box, keep_box_of)
    command = Command(request, endpoint, answerer.value, is_live=not json, tools=own, talk=talk, stay=stay)
    finish(run_command(command, settings), as_json=json)


def _talk(*, is_chat: bool, may_ask: bool) -> Literal["once", "further", "chat"]:
    """Return whether a person says more when a turn has ended."""
    if is_chat:
        return "chat"
    return "further" if may_ask else "once"


def _prompt(argument: str) -> str:
    prompt = sys.stdin.read() if argument == "-" else argument
    if not prompt.strip():
        raise ConfigError("The prompt is empty.")
    return prompt
