"""`sandhog explain`: says whether a command would run, and why."""

from typing import Annotated

import typer

from coordinator.commands import run_flags
from coordinator.commands.explain import explain, rules_of
from coordinator.commands.one_session import own_tools
from coordinator.errors import ConfigError
from coordinator.settings import read_settings
from tools.permission import Policy, Terms

app = typer.Typer(add_completion=False)


@app.command()
def explain_command(
    command: Annotated[str | None, typer.Argument(help="A command as the model would give it to Bash.")] = None,
    policy: Annotated[Policy, typer.Option(help="What decides where no rule does.")] = Policy.GUARDED,
    policy_file: run_flags.PolicyFile = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="As for a session that only reads.")] = False,
) -> None:
    """Say whether a command would run, and why; without a command, check the policy file and its tests."""
    settings = read_settings()
    path = policy_file or settings.policy_file
    rules = rules_of(path, own_tools(settings.tool_paths).registry)
    if command is None:
        if path is None:
            raise ConfigError("Give a command, or a --policy-file to check.")
        print(f"{path}: its rules can be used, and its tests hold.")
        return
    _, lines = explain(command, Terms(policy, rules, read_only))
    print("\n".join(lines))
