"""Connections to the engine's socket that serve any request.

The library keeps its connections by whole address. Hardly an address is asked for twice, so that nearly every request
would open a connection, and first make a pool with room for all that may be open at once.
"""

from typing import Any

import docker
from docker.transport import UnixHTTPAdapter

SOCKET_SCHEME = "http+docker://"


class OnePoolAdapter(UnixHTTPAdapter):
    """Takes every request's connection from one pool."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        """Return the pool, whatever the request's address."""
        return super().get_connection(SOCKET_SCHEME, proxies)


def is_beside(client: docker.APIClient) -> bool:
    """Whether the engine is reached by a local socket, and so most likely has this machine's files and kernel."""
    return client.base_url.startswith(SOCKET_SCHEME)


def share_connections(client: docker.APIClient, most: int) -> None:
    """Let the client's requests over a local socket use the same connections; `most` stay open at once."""
    adapter = client.get_adapter(SOCKET_SCHEME) if is_beside(client) else None
    if isinstance(adapter, UnixHTTPAdapter):
        client.mount(
            SOCKET_SCHEME,
            OnePoolAdapter(adapter.socket_path, timeout=client.timeout, pool_connections=1, max_pool_size=most),
        )
