"""Reads outcomes from the coordinator's reply stream: dispatch → worker → **collect** → budget.

One reader for all sessions of a process. It goes on from the last id it saw after every loss of the connection; the
first terminal state of a task id wins, and what nobody waits for is dropped.
"""

import asyncio
import logging
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.ending import end
from worker.contract import keys
from worker.contract.replies import REPLY_FIELD, Reply, decode_reply

log = logging.getLogger(__name__)

BLOCK_MS = 5_000
TRIM_MS = 200
"""So long after the last reply what was read is removed, or once there is this much of it:"""
TRIM_ENTRIES = 64
RETRY_S = 0.2
BATCH = 256

_Answer = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]


class ReplyReader:
    """Hands each reply to the one who expects it. Use `async with`; runs one task of its own."""

    def __init__(self, client: Redis, coordinator: str) -> None:
        self._redis = client
        self._stream = keys.reply_stream(coordinator)
        self._expected: dict[str, asyncio.Future[Reply]] = {}
        self._last_id = "0-0"
        self._untrimmed = 0
        """Entries that were read and still stand in the stream."""
        self._has_answered = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ReplyReader":
        self._task = asyncio.create_task(self._read_forever(), name="collect")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await end(self._task)

    def expect(self, task_id: str) -> asyncio.Future[Reply]:
        """Return the future of a task's reply; call it before the task is sent, so that no reply can be missed."""
        return self._expected.setdefault(task_id, asyncio.get_running_loop().create_future())

    def forget(self, task_id: str) -> None:
        """Wait no more for a task's reply."""
        self._expected.pop(task_id, None)

    async def lag_s(self) -> float:
        """Return the age of the oldest reply that is not read yet; 0 when all are.

        Raises:
            RedisError: Redis does not answer.
        """
        found = await self._redis.xrange(self._stream, min=f"({self._last_id}", count=1)
        unread = cast("list[tuple[bytes, object]]", found)
        if not unread:
            return 0.0
        seconds, microseconds = await self._redis.time()
        written_ms = int(unread[0][0].decode().partition("-")[0])
        return max(0.0, int(seconds) + int(microseconds) / 1e6 - written_ms / 1000)

    async def _read_forever(self) -> None:
        while True:
            try:
                block_ms = TRIM_MS if self._untrimmed else BLOCK_MS
                answer = await self._redis.xread({self._stream: self._last_id}, count=BATCH, block=block_ms)
                self._has_answered = True
                self._take(cast(_Answer, answer))
                if not answer:
                    await self._begin_anew_where_needed()
                if self._untrimmed >= (TRIM_ENTRIES if answer else 1):
                    # What was read is not needed again: a successor of this process asks the nodes, not this stream.
                    await self._redis.xtrim(self._stream, minid=self._last_id, approximate=True)
                    self._untrimmed = 0
            except (RedisError, OSError) as exc:
                # A Redis that is just starting is no news; one that went away is.
                level = logging.WARNING if self._has_answered else logging.INFO
                log.log(level, "the reply stream is away", extra={"error": str(exc)})
                await asyncio.sleep(RETRY_S)

    async def _begin_anew_where_needed(self) -> None:
        """Read from the beginning where the stream is another one that is behind what was read.

        A Redis that was emptied, or lost the stream, counts its entries by its clock, which may have been set back.
        """
        last = await self._redis.xrevrange(self._stream, count=1)
        entries = cast("list[tuple[bytes, object]]", last)
        if entries and _number(entries[0][0]) < _number(self._last_id.encode()):
            self._last_id = "0-0"

    def _take(self, answer: _Answer) -> None:
        for _, entries in answer:
            self._untrimmed += len(entries)
            for entry_id, fields in entries:
                self._last_id = entry_id.decode()
                reply = decode_reply(fields.get(REPLY_FIELD.encode(), b""))
                waiting = self._expected.pop(reply.task_id, None) if reply else None
                if reply and waiting and not waiting.done():
                    waiting.set_result(reply)


def _number(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, place = entry_id.partition(b"-")
    return int(milliseconds), int(place)
