"""The reply stream: a Celery result backend that appends each outcome to its coordinator's Redis stream.

order → worker → **reply stream** → collect. One key per coordinator instead of one per call; durable, and resumed by
id after a reconnect. The worker side is `ReplyStreamBackend`; the coordinator side decodes with `decode_reply`.
"""

import json
import math
import time
from dataclasses import dataclass
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend

from worker.contract import keys

REPLY_FIELD = "d"
TOLD = ""
"""What a body returns whose answers are in the stream already: nothing is stored for it."""
REPLY_MAX_ENTRIES = 20_000
"""Backlog bound of a stream; the coordinator trims what it has read long before."""
RENEW_S = 60.0
MOST_STREAMS = 1_000


@dataclass(frozen=True)
class Reply:
    """One terminal state of a Celery task as read from the stream."""

    task_id: str
    succeeded: bool
    """The body returned. False: Celery's own failure, which says nothing about whether the body ran."""
    result: str | None
    """What the body returned: an outcome's text. None unless it succeeded."""
    error: str
    """Celery's words on a failure, else ""."""


def decode_reply(raw: bytes) -> Reply | None:
    """Return the reply held in one stream entry, or None for one that is no reply of ours."""
    try:
        meta = json.loads(raw)
        task_id, state, result = str(meta["task_id"]), meta["status"], meta["result"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if state == states.SUCCESS and isinstance(result, str):
        return Reply(task_id, True, result, "")
    return Reply(task_id, False, None, f"{state}: {json.dumps(result)[:500]}")


class ReplyStreamBackend(RedisBackend):  # type: ignore[misc]
    """Appends terminal task states to `sandhog:reply:<reply_to>`; keeps no key per task.

    A task sent without `reply_to` stores nothing. Celery's own retry policy around `_store_result` waits for a
    Redis that is away (`result_backend_always_retry`); a repeated append is harmless, since the first state of a
    task id wins at the reader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._renewed: dict[str, float] = {}
        """When a stream was last given its time to live."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to nothing: outcomes are read from the stream."""

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        reply_to = getattr(request, "reply_to", None)
        if not reply_to or state not in states.READY_STATES or result == TOLD:
            return result
        entry = json.dumps({"task_id": task_id, "status": state, "result": result}, separators=(",", ":"))
        self._append(keys.reply_stream(reply_to), {REPLY_FIELD: entry})
        return result

    def _append(self, stream: str, fields: dict[Any, Any]) -> None:
        """Append an entry; a stream that is made, or has not been renewed for long, is given its time to live anew."""
        bound = {"maxlen": REPLY_MAX_ENTRIES, "approximate": True}
        now = time.monotonic()
        is_renewed = now - self._renewed.get(stream, -math.inf) < RENEW_S
        if is_renewed and self.client.xadd(stream, fields, nomkstream=True, **bound) is not None:
            return
        with self.client.pipeline(transaction=False) as pipe:
            pipe.xadd(stream, fields, **bound)
            pipe.expire(stream, keys.REPLY_TTL_S)
            pipe.execute()
        if len(self._renewed) >= MOST_STREAMS:
            # Coordinators come and go.
            self._renewed.clear()
        self._renewed[stream] = now
