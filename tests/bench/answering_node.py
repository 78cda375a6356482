"""A node without boxes: claims every call and answers it at once, so that what lies before a box can be measured alone.

`python -m tests.bench.answering_node NAME REDIS_URL`; ends by SIGTERM.
"""

import os
import sys

import redis
from celery import Task
from celery.exceptions import Ignore

from worker.app import create_app
from worker.chains import run_chain
from worker.contract import keys, scripts
from worker.contract.orders import (
    CALL_TASK,
    FINISH_TASK,
    PREPARE_TASK,
    CallOrder,
    CallOutcome,
    Fate,
    FinishOrder,
    FinishOutcome,
    NodeLife,
    PrepareOrder,
    PrepareOutcome,
)
from worker.node import Lease

LANES = 16
PLACES = 1_000
RESULT = {"status": "success", "text": "(no output)", "data": {"exit_code": 0, "cwd": "/workspace"}}


def main() -> None:
    """Answer until a signal comes."""
    name, redis_url = sys.argv[1:]
    client = redis.Redis.from_url(redis_url)
    claim = client.register_script(scripts.CLAIM)
    life = NodeLife(node=name, incarnation=f"{name}-{os.getpid()}", places=PLACES, lanes=LANES, pid=os.getpid())

    def run(order: str) -> str:
        key = CallOrder.from_text(order).key
        names = [keys.claim(str(key)), keys.session(key.session)]
        if claim(keys=names, args=[str(key), key.generation, key.step, keys.CLAIM_TTL_S]) != b"granted":
            raise Ignore
        return CallOutcome(key=key, fate=Fate.RAN, result=dict(RESULT)).to_text()

    def call(task: Task, order: str) -> str:
        return run_chain(app, task.request, order, run, lambda: False)

    def prepare(order: str) -> str:
        return PrepareOutcome(session=PrepareOrder.from_text(order).box.session).to_text()

    def finish(order: str) -> str:
        return FinishOutcome(session=FinishOrder.from_text(order).box.session).to_text()

    app = create_app(redis_url)
    app.task(call, name=CALL_TASK, bind=True)
    for task, body in ((PREPARE_TASK, prepare), (FINISH_TASK, finish)):
        app.task(body, name=task)
    lease = Lease(client, life)
    lease.start()
    try:
        app.Worker(
            hostname=keys.hostname(name),
            pool="threads",
            concurrency=LANES,
            queues=[keys.queue(name)],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel="ERROR",
            quiet=True,
        ).start()
    finally:
        lease.close()


if __name__ == "__main__":
    main()
