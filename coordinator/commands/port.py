"""`sandhog port`: a port of a session's box on this machine's loopback."""

import asyncio
import sys
from typing import Annotated

import typer

from coordinator.commands.completing import SessionId
from coordinator.errors import ConfigError
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def port(
    session_id: SessionId,
    ports: Annotated[
        str, typer.Argument(metavar="PORT[:LOCAL]", help="The box's port, and the one here; 0 takes a free one.")
    ],
) -> None:
    """Forward connections to a port here on 127.0.0.1 into a session's box, until Ctrl-C or the session's end.

    The box needs no network for it: whatever listens on its loopback is reached. Exit codes: 130 by Ctrl-C, SIGTERM or
    the end of its terminal, 1 when the box ended or cannot be reached, 2 bad usage.
    """
    # What talks to Redis takes a while to import, which the other commands need not wait for.
    from coordinator.commands.forwarding import forward
    from coordinator.commands.reaching import session_of

    settings = read_settings()
    there, here = _numbers(ports)
    session = session_of(settings, session_id)

    def told(bound: int) -> None:
        print(f"127.0.0.1:{bound} leads to port {there} of the box of {session}; Ctrl-C ends it.", file=sys.stderr)

    try:
        asyncio.run(forward(settings, session, there, here, told))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None


def _numbers(ports: str) -> tuple[int, int]:
    there, mark, here = ports.partition(":")
    try:
        numbers = int(there), int(here if mark else there)
    except ValueError:
        numbers = (0, 0)
    if not (0 < numbers[0] < 65_536 and 0 <= numbers[1] < 65_536):
        raise ConfigError(f"{ports!r} is no pair of ports; give 8000, or 8000:9000 for port 9000 here.")
    return numbers
