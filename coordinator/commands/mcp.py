"""`sandhog mcp`: a box's tools for any MCP client, over stdio or HTTP."""

import os
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands import box_flags, run_flags
from coordinator.commands.explain import rules_of
from coordinator.commands.one_session import check_directory, own_tools
from coordinator.commands.run_flags import Approve
from coordinator.errors import ConfigError
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Wanted, choose
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)

PROMPT = "(an MCP client uses the tools of this box)"
Http = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Serve HTTP on this port of 127.0.0.1 (0: a free one) instead of stdio."),
]
Answerer = Annotated[
    Approve, typer.Option(help="Who answers when the policy asks: always yes, always no, or `sandhog approve` (wait).")
]


# As long as it has flags: each is a parameter with its help, and the body only puts them together.
@app.command()
def mcp(
    workspace: run_flags.Workspace = Path(),
    copy: run_flags.Copy = False,
    bind: run_flags.Bind = False,
    as_root: run_flags.AsRoot = False,
    apply: run_flags.Apply = False,
    image: run_flags.Image = None,
    profile: run_flags.Profile = None,
    policy: run_flags.PolicyName = None,
    policy_file: run_flags.PolicyFile = None,
    approve: Answerer = Approve.NEVER,
    http: Http = None,
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
) -> None:
    """Offer the tools of one box to an MCP client; the box ends with the client.

    Over stdio the client is the program that started this one. Over HTTP it brings the token that is printed, or that
    SANDHOG_MCP_TOKEN holds.
    """
    if approve is Approve.ASK:
        raise ConfigError("--approve ask: standard input is the client's. Take always, never or wait.")
    settings = read_settings()
    directory = check_directory(workspace)
    wanted = Wanted(directory, bind=bind, copy=copy, as_root=as_root, policy=policy, is_terminal=False)
    own = own_tools([*settings.tool_paths, *(tools or ())])
    request = SessionRequest(
        prompt=PROMPT,
        workspace=choose(wanted, owner_uid=directory.stat().st_uid, own_uid=os.geteuid()),
        image=image or settings.image,
        profile=profile or settings.profile,
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
        budgets=settings.budgets,
    )
    # The SDK and its server are heavy, and wanted by this command alone.
    from coordinator.commands.mcp_serving import Serving, serve

    serve(Serving(request, own, approve.value, http, os.environ.get("SANDHOG_MCP_TOKEN")), settings)
