"""A session's events as a stream that can be taken up again: sessions → **sse** → HTTP.

Source: HTML Living Standard, 9.2 Server-sent events.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable

from coordinator.errors import ConfigError
from coordinator.service.entries import Entry
from coordinator.service.journal import EventId, Line
from coordinator.service.principals import Principal
from coordinator.service.sessions import Sessions

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""Proxies cut connections on which nothing comes; a comment is something."""
LOOK_S = 3.0
"""How often it is looked whether the reader may still see the session."""


async def stream(
    sessions: Sessions, entry: Entry, after: EventId, reader_now: Callable[[], Principal | None]
) -> AsyncIterator[bytes]:
    """Yield the stream: kept events carry an id, pieces of text none. Cut off where the volume cannot be read.

    Args:
        sessions: The service.
        entry: The session.
        after: The last event that the reader has.
        reader_now: Tells who reads; once that is nobody any more, or somebody who may not, the stream is cut off.
    """
    clock = asyncio.get_running_loop().time
    looked_at = clock()
    try:
        async for message in _messages(sessions, entry, after):
            if clock() - looked_at > LOOK_S:
                reader, looked_at = await asyncio.to_thread(reader_now), clock()
                if reader is None or not reader.sees(entry.record.principal):
                    return
            if message:
                yield message
    except (ConfigError, OSError) as exc:
        # The answer has begun: whoever reads no end of the session asks again.
        log.warning("a stream is cut off", extra={"session_id": entry.session_id, "error": str(exc)})


async def _messages(sessions: Sessions, entry: Entry, after: EventId) -> AsyncIterator[bytes]:
    """Yield the stream's messages, and nothing (b"") at a pause."""
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    # Said at once, so that the client knows that it is connected.
    yield b": connected\n\n"
    async for item in sessions.events(entry, after):
        if isinstance(item, Line):
            yield _message(item.type, json.dumps(item.fields, separators=(",", ":")), str(item.id))
        elif item is not None:
            # As ASCII, like the kept ones: some readers end lines also at U+2028 and its like.
            yield _message(item.type, json.dumps(item.model_dump(mode="json"), separators=(",", ":")))
        elif clock() - sent_at < KEEP_ALIVE_S:
            yield b""
            continue
        else:
            yield b": still there\n\n"
        sent_at = clock()


def _message(kind: str, data: str, event_id: str | None = None) -> bytes:
    """Return one message; JSON has no newline, so that data is one line."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")
