"""Sends orders to a node's queue: partition → **dispatch** → worker.

A batch of safe calls is one Celery group, a run of unsafe ones one chain of immutable signatures; never a chord. Each
signature has its own task id, reply address and `expires`. Sending blocks on Redis, so it happens in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from celery import Celery, chain, group
from celery.canvas import Signature
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from worker.app import SENDERS
from worker.contract import keys
from worker.contract.orders import (
    CALL_TASK,
    CANCEL_COMMAND,
    COPY_TASK,
    FINISH_TASK,
    JOIN_TASK,
    PREPARE_TASK,
    CallKey,
    CallOrder,
    Contract,
    CopyOrder,
    FinishOrder,
    PrepareOrder,
)
from worker.contract.traces import traceparent

log = logging.getLogger(__name__)

NOT_SHOWN = {"argsrepr": "()", "kwargsrepr": "{}"}
"""What Celery would else make of each order for its log: work for nothing, and no log is to hold what was ordered."""


class Dispatcher:
    """Publishes orders and control commands without blocking the event loop. Close it when done.

    A publish that fails is not repeated: whether its message arrived is unknown, and the fence settles that.
    """

    def __init__(self, app: Celery, coordinator: str, *, is_traced: bool = False) -> None:
        """`is_traced` tells nodes which span of ours each call has."""
        self._app = app
        self._is_traced = is_traced
        self._reply_to = coordinator
        # Made here, by one thread: two that meet in making it shrink connections that are in use, and that fails.
        self._producers = app.amqp.producer_pool
        self._threads = ThreadPoolExecutor(SENDERS, thread_name_prefix="dispatch")

    def close(self) -> None:
        """Wait for what is being sent, then end the threads and connections."""
        self._threads.shutdown()
        self._app.close()

    async def send_group(self, orders: Sequence[CallOrder]) -> bool:
        """Send concurrency-safe calls as one group; False when it is uncertain that they arrived."""
        return await self._send_calls(orders, lambda calls: group(calls, app=self._app))

    async def send_chain(self, orders: Sequence[CallOrder]) -> bool:
        """Send calls that run one after the other as one chain; False when it is uncertain that they arrived."""
        return await self._send_calls(orders, lambda calls: chain(*calls, app=self._app))

    async def send_join(self, order: CallOrder, task_id: str) -> bool:
        """Ask the order's node for the outcome of a call that was started earlier."""
        return await self._send(self._signature(JOIN_TASK, order, order.node, task_id))

    async def send_prepare(self, order: PrepareOrder, task_id: str) -> bool:
        """Ask a node to start a session's box."""
        return await self._send(self._signature(PREPARE_TASK, order, order.node, task_id))

    async def send_finish(self, order: FinishOrder, task_id: str) -> bool:
        """Ask a node to end a session's box and say what its workspace became."""
        return await self._send(self._signature(FINISH_TASK, order, order.node, task_id))

    async def send_copy(self, order: CopyOrder, task_id: str) -> bool:
        """Ask a node to copy a session's workspace for a fork."""
        return await self._send(self._signature(COPY_TASK, order, order.node, task_id))

    async def cancel(self, node: str, call_keys: Sequence[CallKey]) -> bool:
        """End running calls; reaches a node in milliseconds also when all its lanes are busy.

        False when it is uncertain that the command arrived.
        """
        arguments = {"call_keys": [str(key) for key in call_keys]}
        destination = [keys.hostname(node)]
        return await self._publish(
            lambda: self._app.control.broadcast(CANCEL_COMMAND, arguments, destination=destination, reply=False)
        )

    async def _send_calls(self, orders: Sequence[CallOrder], joined: Callable[[list[Signature]], Signature]) -> bool:
        calls = [self._call(order) for order in orders]
        # Most replies have one call, which needs nothing of what joins several.
        return await self._send(calls[0] if len(calls) == 1 else joined(calls))

    def _call(self, order: CallOrder) -> Signature:
        if self._is_traced:
            order = order.model_copy(update={"traceparent": traceparent(order.key)})
        return self._signature(CALL_TASK, order, order.node, str(order.key))

    def _signature(self, task: str, order: Contract, node: str, task_id: str) -> Signature:
        signature = self._app.signature(task, kwargs={"order": order.to_text()}, immutable=True)
        return signature.set(
            queue=keys.queue(node), task_id=task_id, reply_to=self._reply_to, expires=keys.QUEUE_TTL_S, **NOT_SHOWN
        )

    async def _send(self, canvas: Signature) -> bool:
        return await self._publish(canvas.apply_async)

    async def _publish(self, publish: Callable[[], object]) -> bool:
        def in_thread() -> bool:
            try:
                publish()
            except (OperationalError, RedisError, OSError) as exc:
                log.warning("it is uncertain whether a message was sent", extra={"error": str(exc)})
                return False
            return True

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)
