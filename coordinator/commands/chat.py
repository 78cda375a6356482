"""`sandhog chat`: a session of many messages, with the flags of `sandhog run`."""

import inspect
from typing import Annotated, Any

import typer

from coordinator.commands.run import run

app = typer.Typer(add_completion=False)

Message = Annotated[str, typer.Argument(help="The first message; asked for if it is left out.")]


def chat(**flags: Any) -> None:
    """Talk with a session, message by message.

    On a terminal, Ctrl-C ends what runs and Ctrl-D leaves; a line that ends in a backslash goes on in the next one.
    Without one, each line of standard input is a message. Exit codes as of `run`.
    """
    run(**flags, is_chat=True)


def _parameters() -> list[inspect.Parameter]:
    """Return the parameters of `run` as far as a chat has them: written down once, they cannot drift apart."""
    wanted = dict(inspect.signature(run, eval_str=True).parameters)
    wanted["prompt"] = wanted["prompt"].replace(annotation=Message, default="")
    return [one for name, one in wanted.items() if name not in ("json", "is_chat")]


# Typer reads a command's flags from its signature.
chat.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
app.command()(chat)
