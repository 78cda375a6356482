"""`sandhog shell`: a person in a session's box."""

import asyncio
import sys
from typing import Annotated

import typer

from coordinator.commands.completing import SessionId
from coordinator.commands.terminal import is_terminal
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def shell(
    session_id: SessionId,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="A program with its arguments; else a shell.")
    ] = None,
    no_tty: Annotated[bool, typer.Option("--no-tty", help="Pipes in place of a terminal.")] = False,
) -> None:
    """Open a shell in the box of a session that runs, or run one command there, as the agent's user.

    On a terminal it has one of its own; Enter, then ~ and . leave a shell that answers no more. It ends with the
    session, and what it started ends with it. Exit codes: the command's own, 128 and the signal's number if one ended
    it, 127 if it could not be started, 255 if the box or the way to it was lost.
    """
    # What talks to Redis takes a while to import, which the other commands need not wait for.
    from coordinator.commands.reaching import session_of
    from coordinator.commands.shelling import Sitting

    settings = read_settings()
    session = session_of(settings, session_id)
    argv = tuple(command or ())
    # Behind the session's id nothing is an option of ours, so the mark is not taken away either.
    argv = argv[1:] if argv[:1] == ("--",) else argv
    has_tty = not no_tty and is_terminal(sys.stdin, sys.stdout)
    raise typer.Exit(asyncio.run(Sitting(settings, session, argv, has_tty=has_tty).run()))
