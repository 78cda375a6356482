"""Whoever leaves in the middle of a request leaves no trace: no traceback, and nothing half-written."""

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves, prompt


async def opened(served: Served, head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request was begun."""
    host, port = served.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}\r\nHost: x\r\nAuthorization: Bearer {FIRST_TOKEN}\r\n".encode())
    return reader, writer


async def left(writer: asyncio.StreamWriter, *, is_reset: bool) -> None:
    """Leave in good order, or as after a crash."""
    if is_reset:
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was told of requests; that a full machine was slow with something else is none of it."""
    of_cluster = "coordinator.cluster."
    return [
        record.getMessage()
        for record in caplog.records
        if record.exc_info or (record.levelno >= logging.WARNING and not record.name.startswith(of_cluster))
    ]


async def until_at_work(is_at_work: bool) -> None:
    """Until the server has a request to answer, or none any more."""
    async with asyncio.timeout(30):
        while any("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks()) != is_at_work:
            await asyncio.sleep(0.01)


async def until_idle(served: Served) -> None:
    await until_at_work(False)
    assert (await served.client().get("/healthz")).status_code == 200


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
async def test_an_upload_that_is_broken_off_leaves_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, length: str, is_reset: bool
) -> None:
    _, writer = await opened(served, "PUT /v1/archives HTTP/1.1")
    piece = b"x" * 100_000
    writer.write(
        f"{length}\r\n\r\n".encode() + (b"%x\r\n" % len(piece) + piece + b"\r\n" if "chunked" in length else piece)
    )
    async with asyncio.timeout(30):
        while not [path for path in served.state_dir.glob("archives/*/*.part") if path.exists()]:
            await asyncio.sleep(0.01)
    await left(writer, is_reset=is_reset)
    await until_idle(served)
    assert list(served.state_dir.glob("archives/*/*")) == []
    assert faults(caplog) == []


async def test_a_body_that_is_broken_off_makes_nothing(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await opened(served, "POST /v1/sessions HTTP/1.1")
    writer.write(b'Content-Type: application/json\r\nContent-Length: 16\r\n\r\n{"prompt": "x"')
    await writer.drain()
    await until_at_work(True)
    await left(writer, is_reset=True)
    await until_idle(served)
    assert (await served.client().get("/v1/sessions")).json()["sessions"] == []
    assert faults(caplog) == []


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_stream_that_is_left_is_over(serve: Serves, caplog: pytest.LogCaptureFixture, is_reset: bool) -> None:
    served = await serve([Turn("word " * 2_000, chunk_chars=4, chunk_delay_s=0.01)])
    session_id = (await served.client().post("/v1/sessions", json=prompt())).json()["session_id"]
    entry = served.sessions.index.get(session_id)
    assert entry is not None
    reader, writer = await opened(served, f"GET /v1/sessions/{session_id}/events HTTP/1.1")
    writer.write(b"\r\n")
    await reader.readuntil(b"text_delta")
    assert len(entry.followers) == 1
    await left(writer, is_reset=is_reset)
    await until_idle(served)
    assert len(entry.followers) == 0
    assert faults(caplog) == []


async def test_a_stream_whose_file_cannot_be_read_is_cut_off(serve: Serves, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        gate.wait(60)
        return Turn("done")

    served = await serve(script)
    session_id = (await served.client().post("/v1/sessions", json=prompt())).json()["session_id"]
    path = served.state_dir / "sessions" / session_id / f"{session_id}.1.jsonl"
    async with served.client().stream("GET", f"/v1/sessions/{session_id}/events") as response:
        lines = response.aiter_lines()
        while await anext(lines) != "event: step_started":
            pass
        path.rename(path.with_suffix(".aside"))
        path.mkdir()
        gate.set()
        async for _ in lines:
            pass
    path.rmdir()
    path.with_suffix(".aside").rename(path)
    assert (await served.ended(served.client(), session_id))["status"] == "completed"
    assert faults(caplog) == ["a stream is cut off"]
    assert not any(record.exc_info for record in caplog.records)
