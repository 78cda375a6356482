"""The `sandhog` command: the table of its commands, each imported when it is called."""

import importlib
import sys
from typing import Any

import typer
from typer.core import (  # type: ignore[attr-defined]  # where else it is has no public name
    CompletionItem,
    TyperGroup,
)

from coordinator.errors import ConfigError, SandhogError

COMMANDS = {
    "run": "coordinator.commands.run",
    "chat": "coordinator.commands.chat",
    "resume": "coordinator.commands.resume",
    "fork": "coordinator.commands.fork",
    "show": "coordinator.commands.show",
    "export": "coordinator.commands.export",
    "batch": "coordinator.commands.batch",
    "compare": "coordinator.commands.compare",
    "demo": "coordinator.commands.demo_command",
    "ps": "coordinator.commands.ps",
    "logs": "coordinator.commands.logs",
    "attach": "coordinator.commands.attach",
    "cancel": "coordinator.commands.cancel",
    "top": "coordinator.commands.top",
    "shell": "coordinator.commands.shell",
    "cp": "coordinator.commands.cp",
    "port": "coordinator.commands.port",
    "apply": "coordinator.commands.apply",
    "approve": "coordinator.commands.approve",
    "explain": "coordinator.commands.explain_command",
    "mcp": "coordinator.commands.mcp",
    "breakers": "coordinator.commands.breakers",
    "serve": "coordinator.commands.serve",
    "worker": "coordinator.commands.worker",
    "nodes": "coordinator.commands.nodes",
    "drain": "coordinator.commands.drain",
    "token": "coordinator.commands.token",
    "config": "coordinator.commands.config",
    "doctor": "coordinator.commands.doctor",
    "gc": "coordinator.commands.gc",
    "wait": "coordinator.commands.wait",
}
"""Each module has one command in its `app`. What is heavy to import is imported by the function that needs it."""


class _Commands(TyperGroup):
    """Finds commands in the table."""

    # Typer carries a copy of click whose types have no public name.

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Return what the shell offers: names alone, for what each command does it would have to be imported."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in COMMANDS if name.startswith(incomplete)]


cli = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    # A pretty trace would show the values of local variables, keys among them.
    pretty_exceptions_enable=False,
    help="Run coding agents whose tool calls happen in sealed sandboxes.",
)


@cli.callback()
def _sandhog() -> None:
    """Run coding agents whose tool calls happen in sealed sandboxes."""


def main() -> None:
    """Run the command; its errors become one line and an exit code."""
    try:
        cli()
    except ConfigError as exc:
        _fail(str(exc), code=2)
    except SandhogError as exc:
        _fail(str(exc), code=1)


def _fail(message: str, *, code: int) -> None:
    print(f"sandhog: {message}", file=sys.stderr)
    sys.exit(code)
