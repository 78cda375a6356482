"""`sandhog breakers`: which tools are switched off, in a cluster or in the sessions that run on this machine."""

import asyncio
from pathlib import Path

import typer
from redis.exceptions import RedisError

from coordinator.cluster.store import connect
from coordinator.commands import run_flags
from coordinator.embedded import live_redis_urls
from coordinator.errors import ConfigError
from coordinator.session.breakers import Breakers, Listed, Listing, table
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


def list_breakers(redis_url: str | None, state_dir: Path) -> list[Listed]:
    """Return the breakers that have something to tell: the named Redis', else those of the commands that run now.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """
    listed: list[Listed] = []
    for url in [redis_url] if redis_url else live_redis_urls(state_dir):
        try:
            listed += asyncio.run(_list(url))
        except RedisError as exc:
            if redis_url:
                raise ConfigError(f"Redis at SANDHOG_REDIS_URL does not answer: {exc}.") from exc
            # It ended while it was being asked.
    return listed


async def _list(redis_url: str) -> list[Listed]:
    client = connect(redis_url)
    try:
        return await Breakers(client).every()
    finally:
        await client.aclose()


@app.command()
def breakers(json: run_flags.Json = False) -> None:
    """Show which tools are switched off after faults, and which have faults counted."""
    settings = read_settings()
    listed = list_breakers(settings.redis_url, settings.state_dir)
    print(Listing(breakers=listed).model_dump_json() if json else table(listed))
