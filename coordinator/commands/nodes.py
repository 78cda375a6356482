"""`sandhog nodes`: the workers of a cluster, or of the commands that run on this machine."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import typer
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from coordinator.cluster.store import NodeView, Store, connect
from coordinator.commands import run_flags
from coordinator.embedded import live_redis_urls
from coordinator.errors import ConfigError
from coordinator.settings import read_settings
from coordinator.visible import visible

app = typer.Typer(add_completion=False)

GIB = 1024**3


class ListedNode(BaseModel):
    """One worker, as `--json` shows it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    node: str
    is_alive: bool
    """Its lease stands."""
    state: str
    """ready; drained by an operator: it gets no new sessions; or draining: it ends."""
    taken: int
    """Boxes that have their place."""
    places: int
    """Room for boxes."""
    lanes: int
    """Calls at once."""
    labels: dict[str, str]
    images: tuple[str, ...]
    warm: tuple[str, ...]
    """Images of which boxes stand ready."""
    profiles: tuple[str, ...]
    """Those that boxes can have there."""
    runtimes: tuple[str, ...]
    """The engine's."""
    cpus: int
    memory_bytes: int
    disk_free_bytes: int
    """On the volume."""
    redis_url: str
    """Where it is registered."""


class NodeListing(BaseModel):
    """What `sandhog nodes --json` prints."""

    nodes: list[ListedNode]


def found_urls(redis_url: str | None, state_dir: Path) -> list[str]:
    """Return the named Redis, else those of the commands that run on this machine now."""
    return [redis_url] if redis_url else live_redis_urls(state_dir)


def list_nodes(redis_url: str | None, state_dir: Path) -> list[ListedNode]:
    """Return all nodes that are known, by name.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """
    listed: list[ListedNode] = []
    for url in found_urls(redis_url, state_dir):
        try:
            listed += [_listed(view, url) for view in asyncio.run(_views(url))]
        except RedisError as exc:
            if redis_url:
                raise ConfigError(f"Redis at SANDHOG_REDIS_URL does not answer: {exc}.") from exc
            # It ended while it was being asked.
    return listed


async def _views(redis_url: str) -> list[NodeView]:
    client = connect(redis_url)
    try:
        return await Store(client).nodes()
    finally:
        await client.aclose()


def _listed(view: NodeView, redis_url: str) -> ListedNode:
    told = view.life.model_dump(include=ListedNode.model_fields.keys() - {"state"})
    # What stands before the @ is a password.
    where = redis_url.rpartition("@")[2]
    return ListedNode(**told, is_alive=view.is_leased, state=view.state, taken=view.taken, redis_url=where)


def table(nodes: Sequence[ListedNode]) -> str:
    """Return a line for each node."""
    if not nodes:
        return "No node is known: start one with `sandhog worker`."
    rows = [("NODE", "STATE", "BOXES", "LANES", "CPUS", "MEMORY", "DISK FREE", "LABELS")]
    for one in nodes:
        labels = ",".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
        sizes = (f"{one.memory_bytes / GIB:.0f} GiB", f"{one.disk_free_bytes / GIB:.0f} GiB")
        state = one.state if one.is_alive else "away"
        boxes = f"{one.taken}/{one.places}"
        rows.append((one.node, state, boxes, str(one.lanes), str(one.cpus), *sizes, labels or "-"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(visible(line) for line in lines)


@app.command()
def nodes(json: run_flags.Json = False) -> None:
    """Show the workers: whether they live, how full they are, and what sessions may be pinned to."""
    settings = read_settings()
    listed = list_nodes(settings.redis_url, settings.state_dir)
    print(NodeListing(nodes=listed).model_dump_json() if json else table(listed))
