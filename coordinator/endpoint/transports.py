"""Connections to one endpoint, for many requests at once: model → **transports** → HTTP.

A pool of connections looks at each idle one of its own for every request that comes and goes: with hundreds of sessions
that would cost more than the requests. So each pool serves a few requests at once, and there are as many as are needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

from coordinator.errors import ConfigError

AT_ONCE = 8
"""Requests that one pool serves at the same time."""


class Transports:
    """Clients of one endpoint, each with a pool of its own. Used by one event loop; close it when done.

    Args:
        address: The endpoint's root.
        api_key: Sent with each request.
        timeout: Of a request.

    Raises:
        ConfigError: the address is none.
    """

    def __init__(self, address: str, api_key: str, timeout: Timeout) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"OPENAI_BASE_URL is not an http address: {address!r}")
        self._address, self._api_key, self._timeout = address, api_key, timeout
        # A proxy of the environment cannot reach this machine's own servers.
        self._trust_env = parts.hostname not in ("127.0.0.1", "::1", "localhost")
        # Takes longer than all the rest of a client, and is the same for all.
        self._tls = httpx2.create_ssl_context(trust_env=self._trust_env)
        self._lent: dict[AsyncOpenAI, int] = {self._make(): 0}
        """Requests of each client."""

    @contextmanager
    def lend(self) -> Iterator[AsyncOpenAI]:
        """Yield a client for one request, until its answer is read."""
        client = next((one for one, requests in self._lent.items() if requests < AT_ONCE), None) or self._make()
        self._lent[client] = self._lent.get(client, 0) + 1
        try:
            yield client
        finally:
            if client in self._lent:
                self._lent[client] -= 1

    async def close(self) -> None:
        """Close all connections."""
        clients, self._lent = list(self._lent), {}
        for client in clients:
            await client.close()

    def _make(self) -> AsyncOpenAI:
        return AsyncOpenAI(
            api_key=self._api_key,
            base_url=self._address,
            max_retries=0,
            timeout=self._timeout,
            http_client=DefaultAsyncHttpxClient(timeout=self._timeout, trust_env=self._trust_env, verify=self._tls),
        )
