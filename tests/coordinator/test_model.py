"""The model client against real HTTP: the scripted endpoint, and a server that says any bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.endpoint.model import ModelClient, ModelSettings, Retry
from coordinator.endpoint.parameters import ModelParameters
from coordinator.endpoint.reply import ModelReply, RawCall, Usage
from coordinator.endpoint.scripted import Script, ScriptedCall, ScriptedEndpoint, Turn
from coordinator.errors import ConfigError, ContextTooLong, ModelError, ModelRefused, ModelUnavailable, ReplyBroken

MESSAGES = [{"role": "user", "content": "go"}]
TOOLS = [{"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}}]


class Asked:
    """A client with everything it showed, told and waited for."""

    def __init__(self, base_url: str, **fields: Any) -> None:
        self.shown: list[str] = []
        self.retries: list[Retry] = []
        self.waits_s: list[float] = []
        self.now_s = 0.0
        settings = ModelSettings(**{"model": "m", "base_url": base_url, **fields})
        self.client = ModelClient(settings, clock=lambda: self.now_s, sleep=self._sleep, chance=lambda: 0.5)

    async def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds

    async def reply(self, messages: Sequence[dict[str, Any]] = MESSAGES, **fields: Any) -> ModelReply:
        try:
            return await self.client.ask(
                list(messages), TOOLS, self.shown.append, on_retry=self.retries.append, **fields
            )
        finally:
            await self.client.close()


async def asked(script: Script, **fields: Any) -> tuple[Asked, ModelReply | ModelError]:
    """One request to a scripted endpoint: the client and its reply or error."""
    with ScriptedEndpoint(script) as endpoint:
        client = Asked(endpoint.base_url, **fields)
        try:
            return client, await client.reply()
        except ModelError as error:
            return client, error


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """A server that answers each connection's first request with the next bytes and hangs up; its base URL."""
    remaining = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        writer.write(remaining.pop(0) if len(remaining) > 1 else remaining[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def http(body: bytes, kind: str = "text/event-stream", *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode() + body


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


TURN = Turn("Let me see ünïcode.", (ScriptedCall("Read", {"path": "é.txt"}), ScriptedCall("Pwd", "")))


async def test_a_streamed_reply_equals_the_unstreamed_one() -> None:
    streamed, first = await asked([TURN])
    unstreamed, second = await asked([TURN], stream=False)
    assert isinstance(first, ModelReply)
    assert isinstance(second, ModelReply)
    assert first.text == TURN.text == "".join(streamed.shown) == "".join(unstreamed.shown)
    assert first.calls == second.calls
    assert first.calls == (
        RawCall(0, "call_0_0", "Read", json.dumps({"path": "é.txt"})),
        RawCall(1, "call_0_1", "Pwd", ""),
    )
    assert first.finish_reason == second.finish_reason == "tool_calls"
    assert first.usage is not None
    assert first.usage.total_tokens > 0
    assert first.raw["choices"][0]["message"] == second.raw["choices"][0]["message"]


async def test_text_is_shown_while_it_comes() -> None:
    client, _ = await asked([Turn("0123456789", chunk_chars=4)])
    assert client.shown == ["0123", "4567", "89"]


async def test_the_request_holds_messages_tools_and_the_settings_extras() -> None:
    with ScriptedEndpoint([TURN], api_key="key-1") as endpoint:
        await Asked(endpoint.base_url, api_key="key-1").reply(
            parameters=ModelParameters(temperature=0, tool_choice="auto")
        )
    assert endpoint.requests[0] == {
        "model": "m",
        "messages": MESSAGES,
        "tools": TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "tool_choice": "auto",
    }


async def test_headers_of_a_session_go_with_its_requests() -> None:
    with ScriptedEndpoint([TURN], api_key="key-1") as endpoint:
        parameters = ModelParameters(headers={"X-Team": "blue"})
        await Asked(endpoint.base_url, api_key="key-1").reply(parameters=parameters)
        await Asked(endpoint.base_url, api_key="key-1").reply()
    assert [headers.get("x-team") for headers in endpoint.headers] == ["blue", None]


async def test_the_quirks_of_an_endpoint_count() -> None:
    with ScriptedEndpoint([TURN]) as endpoint:
        quirks = '{"stream_options": false, "max_tokens_name": "max_completion_tokens"}'
        client = Asked(endpoint.base_url, quirks=quirks)
        reply = await client.reply(parameters=ModelParameters(max_tokens=7))
    assert reply.usage is None
    assert "stream_options" not in endpoint.requests[0]
    assert endpoint.requests[0]["max_completion_tokens"] == 7


async def test_a_history_that_is_too_long_fails_at_once_with_an_error_of_its_own() -> None:
    words = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
    client, error = await asked([Turn(status=400, error={"message": words, "code": "context_length_exceeded"})])
    assert isinstance(error, ContextTooLong)
    assert error.limit_tokens == 8192
    assert json.loads(error.body)["error"]["message"] == words
    assert client.waits_s == []


async def test_a_stream_where_none_was_asked_for_is_understood() -> None:
    body = event(delta={"content": "streamed"}) + event(delta={}, finish_reason="stop") + b"data: [DONE]\n\n"
    async with answering(http(body, "application/json")) as base_url:
        client = Asked(base_url, stream=False)
        assert (await client.reply()).text == "streamed"


async def test_an_error_in_a_body_with_status_200_carries_its_words() -> None:
    body = json.dumps({"error": {"message": "no such model", "code": 404}}).encode()
    async with answering(http(body, "application/json")) as base_url:
        with pytest.raises(ModelRefused, match="no such model"):
            await Asked(base_url, stream=False).reply()


async def test_half_a_call_is_never_taken_for_a_call() -> None:
    calls = (ScriptedCall("Read", {"path": "a" * 200}),)
    cut = Turn(calls=calls, chunk_chars=4, is_cut=True)
    client, reply = await asked([Turn(calls=calls, first=(cut,))])
    assert isinstance(reply, ModelReply)
    assert [call.arguments for call in reply.calls] == [json.dumps({"path": "a" * 200})]
    assert isinstance(client.retries[0].error, ReplyBroken)


async def test_no_tools_means_no_tools_field() -> None:
    with ScriptedEndpoint([TURN]) as endpoint:
        client = ModelClient(ModelSettings("m", base_url=endpoint.base_url, stream=False))
        await client.ask(MESSAGES, [], lambda _: None)
        await client.close()
    assert endpoint.requests[0] == {"model": "m", "messages": MESSAGES}


async def test_a_passing_failure_is_tried_again_with_growing_waits() -> None:
    turn = Turn("ok", first=(Turn(status=500), Turn(status=503), Turn(status=429)))
    client, reply = await asked([turn])
    assert isinstance(reply, ModelReply)
    assert reply.text == "ok"
    assert client.waits_s == [0.375, 0.75, 1.5]
    assert [(retry.error.status, retry.next_try) for retry in client.retries] == [(500, 2), (503, 3), (429, 4)]


async def test_retry_after_is_obeyed() -> None:
    client, reply = await asked([Turn("ok", first=(Turn(status=429, retry_after_s=7),))])
    assert isinstance(reply, ModelReply)
    assert client.waits_s == [7.0]


async def test_retry_after_as_a_date_counts_by_the_endpoints_own_clock() -> None:
    head = b"HTTP/1.1 503 Busy\r\nDate: Wed, 30 Jan 2030 10:00:00 GMT\r\nContent-Length: 0\r\n"
    busy = head + b"Retry-After: Wed, 30 Jan 2030 10:00:09 GMT\r\n\r\n"
    body = event(delta={"content": "ok"}, finish_reason="stop")
    async with answering(busy, http(body)) as base_url:
        client = Asked(base_url)
        assert (await client.reply()).text == "ok"
    assert client.waits_s == [9.0]


async def test_a_wait_beyond_the_time_for_retries_is_not_begun() -> None:
    client, error = await asked([Turn(status=429, retry_after_s=1000)])
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after_s == 1000
    assert client.waits_s == []


async def test_tries_are_bounded() -> None:
    client, error = await asked([Turn(status=502, error="bad gateway")], max_tries=3)
    assert isinstance(error, ModelUnavailable)
    assert len(client.waits_s) == 2
    assert "bad gateway" in str(error)
    assert "after 3 tries" in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_fails_at_once_with_the_endpoints_words(status: int) -> None:
    client, error = await asked([Turn(status=status, error={"message": "not like this", "code": "because"})])
    assert isinstance(error, ModelRefused)
    assert (error.status, error.code) == (status, "because")
    assert "not like this" in str(error)
    assert client.waits_s == []


async def test_an_empty_purse_is_a_refusal_though_its_status_is_429() -> None:
    _, error = await asked([Turn(status=429, error={"message": "no money", "code": "insufficient_quota"})])
    assert isinstance(error, ModelRefused)


async def test_a_wrong_key_is_a_refusal() -> None:
    with ScriptedEndpoint([TURN], api_key="right") as endpoint, pytest.raises(ModelRefused, match="OPENAI_API_KEY"):
        await Asked(endpoint.base_url, api_key="wrong").reply()


async def test_nobody_there_is_unavailable() -> None:
    async with answering(b"") as base_url:
        pass
    client = Asked(base_url, max_tries=2)
    with pytest.raises(ModelUnavailable, match="No connection"):
        await client.reply()
    assert len(client.waits_s) == 1


async def test_silence_before_the_first_byte_is_unavailable() -> None:
    _, error = await asked([Turn("late", delay_s=60)], timeout_s=0.2, max_tries=1)
    assert isinstance(error, ModelUnavailable)
    assert "did not answer" in str(error)


async def test_silence_in_the_middle_is_unavailable() -> None:
    _, error = await asked([Turn("x" * 100, chunk_delay_s=60)], timeout_s=0.2, max_tries=1)
    assert isinstance(error, ModelUnavailable)
    assert "fell silent" in str(error)


async def test_a_reply_that_takes_too_long_in_all_is_unavailable() -> None:
    turn = Turn("x" * 10_000, chunk_delay_s=0.05, chunk_chars=1)
    _, error = await asked([turn], reply_timeout_s=0.3, max_tries=1)
    assert isinstance(error, ModelUnavailable)
    assert "not finished" in str(error)


async def test_a_stream_cut_half_way_is_asked_for_again() -> None:
    cut = Turn("half of this", chunk_chars=4, is_cut=True)
    client, reply = await asked([Turn("whole", first=(cut,))])
    assert isinstance(reply, ModelReply)
    assert reply.text == "whole"
    assert isinstance(client.retries[0].error, ReplyBroken)


async def test_a_stream_that_is_always_cut_is_broken() -> None:
    client, error = await asked([Turn("half of this", chunk_chars=4, is_cut=True)], max_tries=2)
    assert isinstance(error, ReplyBroken)
    assert len(client.waits_s) == 1


@pytest.mark.parametrize("raw", [b"data: {nonsense\n\n", b"data: [1]\n\n", b"data: [DONE]\n\n", b"", b"\xff\xfe"])
async def test_garbage_is_broken(raw: bytes) -> None:
    _, error = await asked([Turn(raw_sse=raw)], max_tries=1)
    assert isinstance(error, ReplyBroken)


async def test_a_page_instead_of_a_reply_is_shown_and_the_base_url_doubted() -> None:
    async with answering(http(b"<html>welcome</html>", "text/html")) as base_url:
        with pytest.raises(ReplyBroken, match=r"<html>welcome.*end in /v1"):
            await Asked(base_url, max_tries=1).reply()


async def test_an_error_inside_the_stream_carries_its_words() -> None:
    raw = event(delta={"content": "x"}) + b'data: {"error": {"message": "worker died", "code": 502}}\n\n'
    _, error = await asked([Turn(raw_sse=raw)], max_tries=1)
    assert isinstance(error, ModelUnavailable)
    assert "worker died" in str(error)


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    body = json.dumps({"choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}]}).encode()
    async with answering(http(body, "application/json; charset=utf-8")) as base_url:
        client = Asked(base_url)
        assert (await client.reply()).text == "plain"
    assert client.shown == ["plain"]


async def test_a_connection_lost_after_the_finish_reason_loses_nothing() -> None:
    body = event(delta={"content": "all"}, finish_reason="stop")
    async with answering(http(body, length=len(body) + 100)) as base_url:
        reply = await Asked(base_url, max_tries=1).reply()
    assert (reply.text, reply.usage) == ("all", None)


async def test_comments_and_odd_line_ends_on_the_wire_do_not_matter() -> None:
    body = b": OPENROUTER PROCESSING\r\n\r\n" + event(delta={"content": "a"}).replace(b"\n", b"\r\n")
    body += b": ping\n\n" + event(delta={"content": "b"}, finish_reason="stop")
    _, reply = await asked([Turn(raw_sse=body)])
    assert isinstance(reply, ModelReply)
    assert reply.text == "ab"


async def test_a_cancelled_request_ends_at_once_and_the_client_goes_on() -> None:
    slow = Turn("slow" * 1000, chunk_delay_s=0.05, chunk_chars=1)
    with ScriptedEndpoint([Turn("fast", first=(slow,))]) as endpoint:
        client = ModelClient(ModelSettings("m", base_url=endpoint.base_url))
        began = asyncio.Event()
        task = asyncio.create_task(client.ask(MESSAGES, None, lambda _: began.set()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.ask(MESSAGES, None, lambda _: None)).text == "fast"
        await client.close()


async def test_a_hundred_sessions_share_a_client_and_an_endpoint() -> None:
    def script(messages: list[dict[str, Any]]) -> Turn:
        return Turn(f"echo {messages[-1]['content']}")

    with ScriptedEndpoint(script) as endpoint:
        client = ModelClient(ModelSettings("m", base_url=endpoint.base_url))
        asks = [client.ask([{"role": "user", "content": str(n)}], None, lambda _: None) for n in range(100)]
        replies = await asyncio.gather(*asks)
        await client.close()
    assert [reply.text for reply in replies] == [f"echo {n}" for n in range(100)]


def test_settings_come_from_the_environment() -> None:
    environment = {"OPENAI_BASE_URL": "http://x/v1", "SANDHOG_MODEL": "m"}
    assert ModelSettings.from_environment(None, environment) == ModelSettings("m", base_url="http://x/v1")
    assert ModelSettings.from_environment("n", {"OPENAI_API_KEY": "k"}) == ModelSettings("n", api_key="k")


def test_a_missing_endpoint_is_named() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ModelSettings.from_environment(None, {"SANDHOG_MODEL": "m"})


@pytest.mark.parametrize("base_url", [None, "127.0.0.1:8000", "ftp://x/v1", "http:///v1"])
def test_a_client_without_a_usable_address_is_a_configuration_error(base_url: str | None) -> None:
    with pytest.raises(ConfigError):
        ModelClient(ModelSettings("m", base_url=base_url))


def test_the_key_is_not_part_of_the_settings_words() -> None:
    assert "hush" not in repr(ModelSettings("m", api_key="hush"))


def test_usage_adds_up() -> None:
    assert Usage(1, 2, 3).plus(Usage(10, 20, 30)).plus(None) == Usage(11, 22, 33)
