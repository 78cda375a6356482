"""`sandhog drain`: lets a worker have no new sessions, for as long as it takes to empty it."""

import asyncio
from typing import Annotated

import typer
from redis.exceptions import RedisError

from coordinator.cluster.store import Store, connect
from coordinator.commands.acting import keep_action
from coordinator.commands.completing import node_names
from coordinator.commands.nodes import found_urls
from coordinator.errors import ConfigError
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


async def drain_node(redis_url: str, node: str, *, undo: bool) -> tuple[bool, list[str]]:
    """Drain a node if it is registered there; return whether it is, and the names of all that are."""
    client = connect(redis_url)
    try:
        store = Store(client)
        names = [view.life.node for view in await store.nodes()]
        # What is drained may be away: it is to have no sessions also when it is back.
        if node in names or undo:
            await store.drain_node(node, undo=undo)
        return node in names, names
    finally:
        await client.aclose()


@app.command()
def drain(
    node: Annotated[str, typer.Argument(help="Its name; see `sandhog nodes`.", autocompletion=node_names)],
    undo: Annotated[bool, typer.Option("--undo", help="Let it have new sessions again.")] = False,
) -> None:
    """Give a worker no new sessions. Those it has go on; their idle boxes are ended, their workspaces kept.

    This holds until --undo, also when the worker is restarted. Once `sandhog nodes` shows no boxes there, it can be
    stopped.
    """
    settings = read_settings()
    keep_action(settings.state_dir, "undrain" if undo else "drain", detail=node)
    known: list[str] = []
    for url in found_urls(settings.redis_url, settings.state_dir):
        try:
            is_there, names = asyncio.run(drain_node(url, node, undo=undo))
        except RedisError as exc:
            raise ConfigError(f"Redis at SANDHOG_REDIS_URL does not answer: {exc}.") from exc
        if is_there:
            print(f"{node} gets new sessions again." if undo else f"{node} gets no new sessions.")
            return
        known += names
    raise ConfigError(f"There is no node {node!r}; there are {', '.join(known) or 'none'}.")
