"""Ask the model: loop → **model** → sse, deltas → reply.

The openai client is transport only (address, credentials, timeouts, connections): the request goes out as a
plain body and the answer is read raw. Its typed interface walks the whole message list and every chunk, which
costs ten times as much per request and grows with the session.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AsyncStream,
    DefaultAsyncHttpxClient,
    OpenAIError,
    Timeout,
)

from coordinator.endpoint.deltas import ReplyGatherer, gather_unstreamed, parse_chunk
from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.sse import SseDecoder, SseTooLarge
from coordinator.errors import ConfigError, ModelError, ModelRefused, ModelUnavailable, ReplyBroken

DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "no-key"
"""Sent where an endpoint is named but no key is: local servers want none, the client wants one."""

LIST_TIMEOUT_S = 5.0
"""How long the list of models is waited for."""

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A reply above this is broken off; the largest real ones are some hundred kilobytes."""

_RETRIED_STATUSES = frozenset({408, 409, 425, 429})
_LASTING_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Codes of a 429 that waiting does not cure."""

_DRAIN_S = 0.2
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0


@dataclass(frozen=True)
class ModelSettings:
    """Where the model is and how it is asked."""

    model: str
    """Name sent to the endpoint; "" until `model_choice` has found one."""
    base_url: str | None = None
    """The endpoint's root, usually ending in /v1; None for OpenAI's own."""
    api_key: str | None = field(default=None, repr=False)
    """None where a `base_url` needs no key."""
    stream: bool = True
    """Whether replies are streamed."""
    timeout_s: float = 300.0
    """The longest silence of the endpoint, also before its first byte."""
    connect_timeout_s: float = 10.0
    """The longest wait for a connection."""
    reply_timeout_s: float = 1800.0
    """The longest a single reply may take from request to end."""
    max_tries: int = 6
    """Requests for one reply, the first one included."""
    max_retry_s: float = 300.0
    """No further try begins later than this after the first."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to every request's body: temperature, max_tokens, reasoning_effort, an endpoint's own."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers added to every request."""
    strict_tools: bool = False
    """Whether the endpoint decodes by the tools' schemas and gets their strict rendering."""

    @classmethod
    def from_environment(cls, model: str | None, environment: Mapping[str, str]) -> "ModelSettings":
        """Settings from `OPENAI_BASE_URL`, `OPENAI_API_KEY` and, where `model` is None, `SANDHOG_MODEL`.

        Raises:
            ConfigError: No endpoint is named.
        """
        base_url = environment.get("OPENAI_BASE_URL") or None
        api_key = environment.get("OPENAI_API_KEY") or None
        if base_url is None and api_key is None:
            raise ConfigError(
                "No model endpoint: set OPENAI_API_KEY for OpenAI's own, or OPENAI_BASE_URL "
                "(such as http://127.0.0.1:8000/v1) for any server that speaks its protocol."
            )
        return cls(model=model or environment.get("SANDHOG_MODEL") or "", base_url=base_url, api_key=api_key)


@dataclass(frozen=True)
class Retry:
    """A try failed and another follows: text shown so far for this reply is void."""

    error: ModelError
    """What went wrong."""
    next_try: int
    """Its number; the first try is 1."""
    wait_s: float
    """The pause before it."""


class ModelClient:
    """Asks one endpoint. Safe for many tasks at once; close it when done.

    Args:
        settings: Where and how.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
        chance: A float in [0, 1) for the jitter.

    Raises:
        ConfigError: The settings name neither endpoint nor key, or no usable address.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if settings.base_url is None and settings.api_key is None:
            raise ConfigError("No model endpoint: neither a base URL (OPENAI_BASE_URL) nor a key (OPENAI_API_KEY).")
        self.settings = settings
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._openai = _transport(settings)

    async def ask(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        on_text: Callable[[str], None],
        *,
        on_retry: Callable[[Retry], None] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        """The model's next reply.

        Args:
            messages: The whole history, valid for a strict endpoint.
            tools: The tools' schemas; None or empty leaves the field out.
            on_text: Gets the visible text piece by piece as it comes (once, whole, when not streamed).
            on_retry: Told before each further try.
            extra: Body fields for this request only, such as `tool_choice`.

        Raises:
            ModelRefused: The endpoint does not accept the request; no second try was made.
            ModelUnavailable: Still overloaded, away or silent after the last try.
            ReplyBroken: Still cut or garbled after the last try.
        """
        body = self._body(messages, tools, extra)
        started = self._clock()
        for number in range(1, self.settings.max_tries + 1):
            try:
                async with asyncio.timeout(self.settings.reply_timeout_s):
                    return await self._try_once(body, on_text)
            except TimeoutError as exc:
                words = f"{self._address} had not finished its reply after {self.settings.reply_timeout_s:.0f} s."
                error: ModelError = ModelUnavailable(words)
                error.__cause__ = exc
            except (ModelUnavailable, ReplyBroken) as exc:
                error = exc
            wait_s = self._wait_s(error, number)
            if number == self.settings.max_tries or self._clock() - started + wait_s > self.settings.max_retry_s:
                raise _given_up(error, number)
            if on_retry is not None:
                on_retry(Retry(error, number + 1, wait_s))
            await self._sleep(wait_s)
        raise AssertionError("max_tries is at least 1")

    async def listed_models(self) -> list[str]:
        """Names of the models the endpoint lists; empty where it lists none or does not answer soon."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                page = await self._openai.models.list()
        except (OpenAIError, TimeoutError, ValueError):
            return []
        return [model.id for model in page.data or []]

    async def close(self) -> None:
        """Closes all connections."""
        await self._openai.close()

    @property
    def _address(self) -> str:
        return self.settings.base_url or DEFAULT_BASE_URL

    def _body(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, extra: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.settings.model, "messages": messages}
        if tools:
            body["tools"] = tools
        if self.settings.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {**body, **self.settings.extra_body, **(extra or {})}

    def _wait_s(self, error: ModelError, number: int) -> float:
        backoff_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (number - 1)) * (0.5 + self._chance() / 2)
        asked_s = error.retry_after_s if isinstance(error, ModelUnavailable) else None
        return max(backoff_s, asked_s or 0.0)

    async def _try_once(self, body: dict[str, Any], on_text: Callable[[str], None]) -> ModelReply:
        """One request and its reply, every foreign error translated."""
        try:
            # With a raw response asked for, the client hands it over unread, whatever `stream_cls` is.
            posted = self._openai.post(
                "/chat/completions", cast_to=httpx2.Response, body=body, stream=True, stream_cls=AsyncStream[Any]
            )
            response = cast(httpx2.Response, await posted)
        except APIStatusError as exc:
            raise status_error(self._address, exc) from exc
        except APITimeoutError as exc:
            raise ModelUnavailable(f"{self._address} did not answer within {self.settings.timeout_s:.0f} s.") from exc
        except APIConnectionError as exc:
            why = exc.__cause__ or exc
            raise ModelUnavailable(f"No connection to {self._address}: {why or type(why).__name__}") from exc
        except OpenAIError as exc:
            raise ModelRefused(f"The request to {self._address} could not be made: {exc}") from exc
        try:
            return await self._read(response, on_text)
        except httpx2.TimeoutException as exc:
            words = f"{self._address} fell silent for {self.settings.timeout_s:.0f} s in the middle of its reply."
            raise ModelUnavailable(words) from exc
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            raise ReplyBroken(f"{self._address} broke its reply off half-way: {exc or type(exc).__name__}") from exc
        finally:
            await response.aclose()

    async def _read(self, response: httpx2.Response, on_text: Callable[[str], None]) -> ModelReply:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream" or (self.settings.stream and kind != "application/json"):
            return await self._read_stream(response, on_text)
        received = bytearray()
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                received += piece
                if len(received) > MAX_REPLY_BYTES:
                    raise ReplyBroken(f"{self._address} sent more than {MAX_REPLY_BYTES} bytes.")
        reply = gather_unstreamed(parse_chunk(received.decode("utf-8", "replace")))
        if reply.text:
            on_text(reply.text)
        return reply

    async def _read_stream(self, response: httpx2.Response, on_text: Callable[[str], None]) -> ModelReply:
        decoder, gatherer = SseDecoder(), ReplyGatherer()
        received, beginning = 0, b""
        try:
            async with aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    received += len(piece)
                    beginning = beginning or piece[:200]
                    if received > MAX_REPLY_BYTES:
                        raise ReplyBroken(f"{self._address} sent more than {MAX_REPLY_BYTES} bytes.")
                    if _gather(gatherer, decoder.feed(piece), on_text):
                        await _drain(pieces)
                        return gatherer.finish()
            _gather(gatherer, decoder.close(), on_text)
        except SseTooLarge as exc:
            raise ReplyBroken(f"{self._address} sent {exc}.") from exc
        except (httpx2.HTTPError, ReplyBroken):
            # Nothing that matters can follow the finish_reason but the usage.
            if not gatherer.is_finished:
                raise
        if gatherer.is_empty:
            kind = response.headers.get("content-type")
            raise ReplyBroken(
                f"{self._address} sent no reply but {kind or 'no content type'}: "
                f"{beginning.decode('utf-8', 'replace')!r}. Does the base URL end in /v1?"
            )
        return gatherer.finish()


def status_error(address: str, exc: APIStatusError) -> ModelError:
    """What an HTTP error status means, with the endpoint's own words."""
    status, body = exc.status_code, exc.body
    fields = body if isinstance(body, dict) else {}
    words = fields.get("message") or fields.get("detail") or body or exc.response.reason_phrase or "no words"
    text = words if isinstance(words, str) else json.dumps(words, default=str)
    text = f"{address} answered {status}: {text if len(text) <= 2000 else text[:2000] + '…'}"
    if (status in _RETRIED_STATUSES or status >= 500) and exc.code not in _LASTING_CODES:
        retry_after_s = _retry_after_s(exc.response.headers)
        return ModelUnavailable(text, status=status, code=exc.code, retry_after_s=retry_after_s)
    hints = {
        401: " (is OPENAI_API_KEY right?)",
        404: " (is the model's name right, and does the base URL end in /v1?)",
    }
    return ModelRefused(text + hints.get(status, ""), status=status, code=exc.code)


def _transport(settings: ModelSettings) -> AsyncOpenAI:
    address = settings.base_url or DEFAULT_BASE_URL
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"OPENAI_BASE_URL is not an http address: {address!r}")
    timeout = Timeout(settings.timeout_s, connect=settings.connect_timeout_s)
    # A proxy of the environment cannot reach this machine's own servers.
    is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    return AsyncOpenAI(
        api_key=settings.api_key or NO_KEY,
        base_url=address,
        max_retries=0,
        timeout=timeout,
        default_headers=dict(settings.extra_headers),
        http_client=DefaultAsyncHttpxClient(timeout=timeout, trust_env=not is_local),
    )


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Reads what follows the last event, so that the connection can be used again; not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


def _gather(gatherer: ReplyGatherer, events: list[str], on_text: Callable[[str], None]) -> bool:
    """Hands events on; whether the stream said that it is over."""
    for data in events:
        if data.strip() == "[DONE]":
            return True
        shown = gatherer.add(parse_chunk(data))
        if shown:
            on_text(shown)
    return False


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the endpoint asked for, as a number or as a date against its own clock."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(wait.total_seconds(), 0.0)


def _given_up(error: ModelError, tries: int) -> ModelError:
    """`error`, saying how often it was tried."""
    if tries > 1:
        error.args = (f"{error} (after {tries} tries)",)
    return error
