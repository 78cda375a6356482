"""`sandhog cp`: files and directories into a session's box, and out of it."""

import asyncio
import sys
from typing import Annotated

import typer

from coordinator.errors import ConfigError
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path here, or ID:PATH in a session's box.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The same; one of the two is in a box.")],
) -> None:
    """Copy a file or directory out of a session's box, or into it: `cp ID:PATH LOCAL`, `cp LOCAL ID:PATH`.

    Into a directory that is there, or under a new name. A path of the box is relative to its workspace. Of a session
    without a box what is kept of its private copy is read and written. Links stay links; one that leads out of what is
    copied is refused, and sockets, pipes and devices are left out.
    """
    # What talks to Redis takes a while to import, which the other commands need not wait for.
    from coordinator.commands.carrying import copy_in, copy_out
    from coordinator.commands.reaching import session_of

    settings = read_settings()
    there, here = _in_box(source), _in_box(target)
    try:
        if there is not None and here is None:
            words = asyncio.run(copy_out(settings, session_of(settings, there[0]), there[1], target))
        elif here is not None and there is None:
            words = asyncio.run(copy_in(settings, session_of(settings, here[0]), source, here[1]))
        else:
            raise ConfigError("One of the two must be in a box, as ID:PATH, and the other one here.")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if words:
        print(f"sandhog: {words}", file=sys.stderr)


def _in_box(given: str) -> tuple[str, str] | None:
    """Return session and path where a place is in a box: what stands before the colon is no path of this machine."""
    session, mark, path = given.partition(":")
    return (session, path or ".") if mark and session and "/" not in session and not session.startswith(".") else None
