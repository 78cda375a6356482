"""Ask the model: loop → **model** → sse, deltas → reply.

The openai client is transport only (address, credentials, timeouts, connections): the request goes out as a
plain body and the answer is read raw. Its typed interface walks the whole message list and every chunk, which
costs ten times as much per request and grows with the session.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AsyncStream,
    OpenAIError,
    Timeout,
)
from pydantic_core import to_json

from coordinator.endpoint.failures import OVERLOADED_STATUSES, status_error
from coordinator.endpoint.limiter import MAX_REQUESTS, EndpointLimiter
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.endpoint.quirks import Quirks, quirks_of
from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.reply_reader import ReplyReader
from coordinator.endpoint.request import request_body
from coordinator.endpoint.transports import Transports
from coordinator.errors import ConfigError, ModelError, ModelRefused, ModelUnavailable, ReplyBroken

DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "no-key"
"""Sent where an endpoint is named but no key is: local servers want none, the client wants one."""

LIST_TIMEOUT_S = 5.0
"""How long the list of models is waited for."""

SHOWN_WAIT_S = 1.0
"""A wait for a place at the endpoint is told from here on."""

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
    max_requests: int = MAX_REQUESTS
    """Requests under way at once, where the client has no limiter that others share."""
    quirks: str = ""
    """A JSON object with fields of `Quirks` that count instead of the table's."""
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
        limiter: Shared by all clients of the endpoint; None makes one.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
        chance: A float in [0, 1) for the jitter.

    Raises:
        ConfigError: The settings name neither endpoint nor key, no usable address, or quirks that are none.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        limiter: EndpointLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if settings.base_url is None and settings.api_key is None:
            raise ConfigError("No model endpoint: neither a base URL (OPENAI_BASE_URL) nor a key (OPENAI_API_KEY).")
        self.settings = settings
        self.quirks: Quirks = quirks_of(settings.base_url, settings.model, settings.quirks)
        self.limiter = limiter or EndpointLimiter(settings.max_requests, clock=clock)
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        timeout = Timeout(settings.timeout_s, connect=settings.connect_timeout_s)
        self._transports = Transports(self._address, settings.api_key or NO_KEY, timeout)

    async def ask(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        on_text: Callable[[str], None],
        *,
        on_retry: Callable[[Retry], None] | None = None,
        on_wait: Callable[[float], None] | None = None,
        parameters: ModelParameters = DEFAULT_PARAMETERS,
        is_first: bool = False,
    ) -> ModelReply:
        """The model's next reply.

        Args:
            messages: The whole history, valid for a strict endpoint.
            tools: The tools' schemas; None or empty leaves the field out.
            on_text: Gets the visible text piece by piece as it comes (once, whole, when not streamed).
            on_retry: Told before each further try.
            on_wait: Told how many seconds the request waited for a place at the endpoint, where it is a second or more.
            parameters: The session's.
            is_first: Whether it is the session's first request.

        Raises:
            ModelRefused: The endpoint does not accept the request; no second try was made.
            ContextTooLong: The messages are more than it takes; no second try was made.
            ModelUnavailable: Still overloaded, away or silent after the last try.
            ReplyBroken: Still cut or garbled after the last try.
        """
        settings = self.settings
        content = self._content(messages, tools, parameters, is_first)
        ticket, spent_s = self.limiter.ticket(), 0.0
        for number in range(1, settings.max_tries + 1):
            async with self.limiter.place(ticket) as waited_s:
                if on_wait is not None and waited_s >= SHOWN_WAIT_S:
                    on_wait(waited_s)
                sent_at = self._clock()
                outcome = await self._outcome(content, parameters.headers, on_text)
                # The wait for a place is nobody's failure: only what was tried counts.
                spent_s += self._clock() - sent_at
                if isinstance(outcome, ModelReply):
                    self.limiter.replied()
                    return outcome
                self._tell_limiter(outcome, sent_at)
            wait_s = self._wait_s(outcome, number)
            spent_s += wait_s
            if number == settings.max_tries or spent_s > settings.max_retry_s:
                raise _given_up(outcome, number)
            if on_retry is not None:
                on_retry(Retry(outcome, number + 1, wait_s))
            await self._sleep(wait_s)
        raise AssertionError("max_tries is at least 1")

    def _content(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        parameters: ModelParameters,
        is_first: bool,
    ) -> bytes:
        """Return a request's body, written once for all tries: the client's own way takes many times as long."""
        name, stream = self.settings.model, self.settings.stream
        body = request_body(name, messages, tools, parameters, self.quirks, stream=stream, is_first=is_first)
        return to_json(body, inf_nan_mode="null")

    async def listed_models(self) -> list[str]:
        """Names of the models the endpoint lists; empty where it lists none or does not answer soon."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                with self._transports.lend() as client:
                    page = await client.models.list()
        except (OpenAIError, TimeoutError, ValueError):
            return []
        return [model.id for model in page.data or []]

    async def close(self) -> None:
        """Closes all connections."""
        await self._transports.close()

    @property
    def _address(self) -> str:
        return self.settings.base_url or DEFAULT_BASE_URL

    async def _outcome(
        self, content: bytes, headers: Mapping[str, str], on_text: Callable[[str], None]
    ) -> ModelReply | ModelUnavailable | ReplyBroken:
        """One try: the reply, or the error that another try may cure; other errors are raised."""
        try:
            async with asyncio.timeout(self.settings.reply_timeout_s):
                return await self._try_once(content, headers, on_text)
        except TimeoutError as exc:
            words = f"{self._address} had not finished its reply after {self.settings.reply_timeout_s:.0f} s."
            error = ModelUnavailable(words)
            error.__cause__ = exc
            return error
        except (ModelUnavailable, ReplyBroken) as exc:
            return exc

    def _tell_limiter(self, error: ModelError, sent_at: float) -> None:
        if isinstance(error, ModelUnavailable) and error.status in OVERLOADED_STATUSES:
            asked_s = error.retry_after_s
            self.limiter.refused(sent_at, asked_s if (asked_s or 0.0) <= self.settings.max_retry_s else None)

    def _wait_s(self, error: ModelError, number: int) -> float:
        backoff_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (number - 1)) * (0.5 + self._chance() / 2)
        asked_s = error.retry_after_s if isinstance(error, ModelUnavailable) else None
        return max(backoff_s, asked_s or 0.0)

    async def _try_once(self, content: bytes, headers: Mapping[str, str], on_text: Callable[[str], None]) -> ModelReply:
        """One request and its reply, every foreign error translated."""
        with self._transports.lend() as client:
            response = await self._posted(client, content, headers)
            try:
                return await self._read(response, on_text)
            except httpx2.TimeoutException as exc:
                words = f"{self._address} fell silent for {self.settings.timeout_s:.0f} s in the middle of its reply."
                raise ModelUnavailable(words) from exc
            except (httpx2.HTTPError, httpx2.StreamError) as exc:
                words = f"{self._address} broke its reply off half-way: {exc or type(exc).__name__}"
                raise ReplyBroken(words) from exc
            finally:
                await response.aclose()

    async def _posted(self, client: AsyncOpenAI, content: bytes, headers: Mapping[str, str]) -> httpx2.Response:
        """The response of one request, unread."""
        try:
            # With a raw response asked for, the client hands it over unread, whatever `stream_cls` is.
            posted = client.post(
                "/chat/completions",
                cast_to=httpx2.Response,
                content=content,
                options={"headers": headers},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
            return cast(httpx2.Response, await posted)
        except APIStatusError as exc:
            raise status_error(self._address, exc) from exc
        except APITimeoutError as exc:
            raise ModelUnavailable(f"{self._address} did not answer within {self.settings.timeout_s:.0f} s.") from exc
        except APIConnectionError as exc:
            why = exc.__cause__ or exc
            raise ModelUnavailable(f"No connection to {self._address}: {why or type(why).__name__}") from exc
        except OpenAIError as exc:
            raise ModelRefused(f"The request to {self._address} could not be made: {exc}") from exc

    async def _read(self, response: httpx2.Response, on_text: Callable[[str], None]) -> ModelReply:
        reader = ReplyReader(on_text)
        try:
            async with aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    reader.feed(piece)
                    if reader.is_over:
                        await _drain(pieces)
                        break
        except (httpx2.HTTPError, ReplyBroken):
            if not reader.has_ending:
                raise
        return reader.finish()


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Reads what follows the last event, so that the connection can be used again; not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


def _given_up(error: ModelError, tries: int) -> ModelError:
    """`error`, saying how often it was tried."""
    if tries > 1:
        error.args = (f"{error} (after {tries} tries)",)
    return error
