"""How a command at a terminal gets at a session's box: name → **reaching** → channel; each time with an audit line."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.cluster.channel import Channel, open_channel
from coordinator.cluster.store import Store, connect
from coordinator.commands.acting import actor, keep_action
from coordinator.commands.kept import session_named
from coordinator.commands.nodes import found_urls
from coordinator.errors import ConfigError, NoBox
from coordinator.settings import Settings
from worker.contract import keys

_SESSION_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")

Purpose = Literal["shell", "copy_in", "copy_out", "port"]


@dataclass(frozen=True)
class FoundBox:
    """Where a session's box is."""

    client: Redis
    """Of the Redis by which its node is reached; open as long as the block that found it."""
    node: str


def session_of(settings: Settings, name: str) -> str:
    """Return the id of the session that a name stands for; of a sub-agent the one above it, whose box it has.

    Raises:
        ConfigError: it stands for none, or for several.
    """
    above = name.partition(keys.CHILD_MARK)[0]
    try:
        return session_named(settings.state_dir, above)
    except ConfigError:
        # Another machine than the cluster's own may not see its volume.
        if settings.redis_url and _SESSION_ID.fullmatch(above):
            return above
        raise


@asynccontextmanager
async def find_box(settings: Settings, session: str) -> AsyncIterator[FoundBox | None]:
    """Yield where a session's box is; None where no living node has had one for it.

    Raises:
        ConfigError: the Redis that was named does not answer.
    """
    async with AsyncExitStack() as stack:
        found = None
        for url in found_urls(settings.redis_url, settings.state_dir):
            client = connect(url)
            stack.push_async_callback(client.aclose)
            try:
                node = await Store(client).node_of(session)
            except RedisError as exc:
                if settings.redis_url:
                    raise ConfigError(f"Redis at SANDHOG_REDIS_URL does not answer: {exc}.") from exc
                # It ended while it was being asked.
                continue
            if node is not None:
                found = FoundBox(client, node)
                break
        yield found


@asynccontextmanager
async def reach(
    settings: Settings, found: FoundBox | None, session: str, purpose: Purpose, detail: str
) -> AsyncIterator[Channel]:
    """Yield a channel to a session's box, once the audit log has a line of it.

    Raises:
        NoBox: there is none.
        TranscriptError: the audit log takes no line; nothing was done.
        ChannelOver: Redis does not answer.
    """
    if found is None:
        raise NoBox(
            f"Session {session} has no box now; it has one while it runs, from its first call on, and "
            "for as long after its last one as `--keep-box` says."
        )
    keep_action(settings.state_dir, purpose, session=session, detail=detail)
    async with open_channel(found.client, found.node, session, purpose=purpose, actor=actor()) as channel:
        yield channel
