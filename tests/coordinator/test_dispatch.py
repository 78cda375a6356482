"""What sends orders, before anything is sent."""

import asyncio

import redis

from coordinator.cluster.dispatch import Dispatcher
from worker.app import create_app
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
