"""Connections to the engine, by a real one."""

import contextlib

import docker
import pytest

from sandbox.engine_connections import SOCKET_SCHEME, OnePoolAdapter, share_connections


def test_requests_of_any_address_share_one_connection(docker_engine_or_skip: None) -> None:
    with contextlib.closing(docker.APIClient(version="auto", timeout=60)) as client:
        if not client.base_url.startswith(SOCKET_SCHEME):
            pytest.skip("the engine is not reached by a local socket")
        share_connections(client, 4)
        for _ in range(3):
            client.info()
            client.version()
            client.images()
        adapter = client.get_adapter(SOCKET_SCHEME)
        assert isinstance(adapter, OnePoolAdapter)
        pools = adapter.pools
        (address,) = pools.keys()
        assert pools[address].num_requests == 9
        assert len([one for one in pools[address].pool.queue if one is not None]) == 1
