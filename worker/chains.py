"""Runs a call and the links of its chain behind it: queue → **chain** → claim.

A message holds all links behind its own, and they are this node's. Celery would publish the rest anew behind each link,
which costs more than the call itself; here one thread runs them one after the other. Each is claimed and answered by
itself, the answer before the next one starts. A node that is ending leaves the links that have not begun to Celery.
"""

from collections.abc import Callable
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import Ignore

from worker.contract.replies import TOLD

Run = Callable[[str], str]
"""Runs one order and returns its outcome, both as text. Raises `Ignore` where its claim was refused."""


def run_chain(app: Celery, request: Context, order: str, run: Run, is_ending: Callable[[], bool]) -> str:
    """Return what Celery is to store for the message: its own order's outcome, or `TOLD` where links ran behind it.

    Args:
        app: Celery's app.
        request: The message; the links that were run are taken from its chain.
        order: The message's own.
        run: Runs an order.
        is_ending: Nothing new is to begin.

    Raises:
        Ignore: a claim was refused, or a link broke; nothing is to be published any more.
    """
    chain: list[Any] = request.chain or []
    task_id, outcome = request.id, run(order)
    while chain and not is_ending():
        app.backend.store_result(task_id, outcome, states.SUCCESS, request=request)
        link = chain.pop()
        task_id = link["options"]["task_id"]
        try:
            outcome = run(link["kwargs"]["order"])
        except Ignore:
            raise
        except Exception as exc:
            # Says nothing about whether it ran; whoever sent it finds out.
            app.backend.store_result(task_id, exc, states.FAILURE, request=request)
            raise Ignore from exc
    if task_id == request.id:
        return outcome
    # By returning: Celery makes a long record of each exception, which costs as much as a call.
    app.backend.store_result(task_id, outcome, states.SUCCESS, request=request)
    return TOLD
