"""`sandhog breakers`: which tools are switched off, in a cluster or in the sessions that run on this machine."""

import asyncio
from pathlib import Path

import typer
from redis.asyncio import Redis

from coordinator.commands import run_flags
from coordinator.commands.elsewhere import everywhere
from coordinator.session.breakers import Breakers, Listed, Listing, table
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


def list_breakers(redis_url: str | None, state_dir: Path) -> list[Listed]:
    """Return the breakers that have something to tell: the named Redis', else those of the commands that run now.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """

    async def ask(client: Redis) -> list[Listed]:
        return await Breakers(client).every()

    return [listed for found in asyncio.run(everywhere(redis_url, state_dir, ask)) for listed in found]


@app.command()
def breakers(json: run_flags.Json = False) -> None:
    """Show which tools are switched off after faults, and which have faults counted."""
    settings = read_settings()
    listed = list_breakers(settings.redis_url, settings.state_dir)
    print(Listing(breakers=listed).model_dump_json() if json else table(listed))
