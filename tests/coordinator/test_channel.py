"""The order in which a terminal's frames come to the node; a real Redis."""

import asyncio
from pathlib import Path
from typing import Any

import redis
from redis.asyncio import BlockingConnectionPool, Redis, UnixDomainSocketConnection

from coordinator.cluster.channel import Channel
from worker.contract import keys
from worker.contract.channels import ChannelFrame, Command, Do, Size, read_frame

NAME = "0" * 32


class LateConnection(UnixDomainSocketConnection):
    """A connection that takes a while to be made, as on a busy machine."""

    async def connect(self) -> None:
        if not self.is_connected:
            await asyncio.sleep(0.3)
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


async def test_what_is_typed_after_a_change_of_size_comes_after_it(
    redis_server: Path, redis_client: redis.Redis
) -> None:
    pool = BlockingConnectionPool(connection_class=LateConnection, path=str(redis_server), max_connections=4)
    client = Redis.from_pool(pool)
    channel = Channel(client, NAME)
    pipe = await channel.open(Command(size=Size(rows=41, cols=123)))
    # The connection that there is says something else: the change of size needs another one.
    beat = asyncio.create_task(channel.say(ChannelFrame(do=Do.BEAT)))
    resized = asyncio.create_task(pipe.resize(Size(rows=50, cols=99)))
    await beat
    await pipe.write(b"stty size\n")
    await resized
    await client.aclose()

    entries: Any = redis_client.xrange(keys.channel_up(NAME))
    said = [read_frame(fields)[0].do for _, fields in entries]
    assert said == [Do.OPEN, Do.BEAT, Do.RESIZE, Do.DATA]
