"""What sends orders, before anything is sent."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from coordinator.cluster.dispatch import Dispatcher
from worker.app import SENDERS, create_app
from worker.contract import keys
from worker.contract.orders import CallKey


async def test_many_first_messages_at_once_share_one_pool(redis_url: str, redis_client: redis.Redis) -> None:
    app = create_app(redis_url)
    dispatcher = Dispatcher(app, "c")
    try:
        # Whoever comes first finds it made: its size is set by whoever makes it, while nobody has a connection of it.
        assert app.amqp.producer_pool.limit == app.conf.broker_pool_limit
        key = CallKey(session="s", generation=1, step=1, index=0)
        await asyncio.gather(*[dispatcher.cancel(f"n{number}", [key]) for number in range(20)])
    finally:
        dispatcher.close()
    assert not redis_client.keys(f"{keys.PREFIX}*")


async def test_as_many_cancels_at_once_as_there_are_senders_never_wait_for_each_other(redis_url: str) -> None:
    """Each holds a connection and takes a second one: met at the first, no one would get it."""
    app = create_app(redis_url)
    dispatcher = Dispatcher(app, "c")
    met = threading.Barrier(SENDERS, timeout=60)
    acquire = app.connection_or_acquire

    @contextmanager
    def meeting(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with acquire(*args, **kwargs) as connection:
            met.wait()
            yield connection

    app.connection_or_acquire = meeting
    try:
        key = CallKey(session="s", generation=1, step=1, index=0)
        cancels = [dispatcher.cancel(f"n{number}", [key]) for number in range(SENDERS)]
        assert all(await asyncio.wait_for(asyncio.gather(*cancels), 60))
    finally:
        dispatcher.close()
