"""The coordinator's one wiring place: settings in, the shared parts of its sessions out."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from redis.exceptions import RedisError

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.collect import BLOCK_MS, ReplyReader
from coordinator.cluster.counts import Counts
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.execute import Executor
from coordinator.cluster.lease import LeaseKeeper
from coordinator.cluster.ownership import Ownership
from coordinator.cluster.parts import Cluster
from coordinator.cluster.placement import Placement
from coordinator.cluster.settle import Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import Turns
from coordinator.cluster.watch import Watch
from coordinator.cluster.wishes import Wishes
from coordinator.errors import ConfigError
from coordinator.session.breakers import Breakers
from tools.loading import LoadedTools, load_tools
from worker.app import create_app
from worker.contract.traces import is_traced
from worker.contract.volume import volume_id

FORGET_S = 1.0


@contextlib.asynccontextmanager
async def open_cluster(
    redis_url: str, state_dir: Path, tools: LoadedTools | None = None, *, cancels_alone: bool = False
) -> AsyncIterator[Cluster]:
    """Yield the parts that sessions share; Redis need not answer yet. All tasks and connections end with the block.

    Args:
        redis_url: The cluster's Redis.
        state_dir: The shared volume.
        tools: The tools of its sessions; None loads the built-in ones and those of installed packages.
        cancels_alone: A cancel ends one call, and not its session.

    Raises:
        ToolsUnusable: `tools` is None and an installed package's cannot be loaded.
        ConfigError: the volume cannot be used.
    """
    tools, volume = tools or load_tools(), _volume(state_dir)
    coordinator = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    # Two clients: a blocking read of the stream must not hold up what the sessions ask.
    client, reading = connect(redis_url), connect(redis_url, blocking_s=BLOCK_MS / 1000)
    store, turns, wishes = Store(client), Turns(client), Wishes(client, coordinator)
    dispatcher = Dispatcher(create_app(redis_url), coordinator, is_traced=is_traced(os.environ))
    try:
        async with (
            ReplyReader(reading, coordinator) as reader,
            Watch(store) as watch,
            Ownership(store, coordinator) as ownership,
            LeaseKeeper(redis_url, coordinator),
            Executor(
                store=store,
                dispatcher=dispatcher,
                settler=Settler(
                    store=store, reader=reader, dispatcher=dispatcher, watch=watch, cancels_alone=cancels_alone
                ),
                watch=watch,
            ) as executor,
        ):
            ownership.on_renewed = turns.count
            ownership.on_told = wishes.wake
            yield Cluster(
                store=store,
                executor=executor,
                placement=Placement(
                    store=store,
                    reader=reader,
                    dispatcher=dispatcher,
                    watch=watch,
                    turns=turns,
                    tools=tools.digest,
                    volume=volume,
                ),
                registry=tools.registry,
                state_dir=state_dir,
                requests=Requests(client),
                breakers=Breakers(client),
                ownership=ownership,
                wishes=wishes,
                turns=turns,
                counts=Counts(client),
                replies=reader,
            )
    finally:
        dispatcher.close()
        await _forget(store, coordinator)
        await client.aclose()
        await reading.aclose()


def _volume(state_dir: Path) -> str:
    try:
        return volume_id(state_dir)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"The volume at {state_dir} cannot be used: {exc}") from exc


async def _forget(store: Store, coordinator: str) -> None:
    """Take back what Redis has of a coordinator that ends. Best effort: a stream that nobody reads expires."""
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(FORGET_S):
            await store.forget_replies(coordinator)
            await store.end_coordinator(coordinator)
