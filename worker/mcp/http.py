"""A server at an address: reached from the node under the rules of the way out, whatever its name resolves to."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from sandbox.egress.addresses import Network
from sandbox.egress.dial import Policy, Refused, Unreachable

BODY_BYTES = 16 * 1024 * 1024
"""The longest answer that is taken from a server; a stream of events is bounded event by event."""
CONNECT_S = 10.0
EVENTS = "text/event-stream"


class JudgedTransport(httpx2.AsyncBaseTransport):
    """Connects to the very address that was judged, and takes no endless answer."""

    def __init__(self, host: str, *, allow_private: bool, deny: tuple[Network, ...]) -> None:
        self._policy = Policy(rules=(), allow_private=frozenset([host] if allow_private else []), deny=deny)
        self._inner = httpx2.AsyncHTTPTransport(retries=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to an address of its host that may be reached."""
        host = request.url.host
        try:
            addresses = await asyncio.to_thread(self._policy.addresses, host)
        except (Refused, Unreachable) as exc:
            raise httpx2.ConnectError(str(exc), request=request) from exc
        judged = httpx2.Request(
            request.method,
            request.url.copy_with(host=str(addresses[0])),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(judged)
        if EVENTS not in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body that breaks off where it becomes too long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = BODY_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"the answer is longer than {BODY_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


@asynccontextmanager
async def over_http(
    url: str, headers: Mapping[str, str], *, timeout_s: float, allow_private: bool, deny: tuple[Network, ...]
) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server at an address."""
    host = httpx2.URL(url).host
    async with (
        httpx2.AsyncClient(
            transport=JudgedTransport(host, allow_private=allow_private, deny=deny),
            # What is not unpacked cannot burst.
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
            trust_env=False,
        ) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
