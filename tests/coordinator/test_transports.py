"""Pools of connections to one endpoint: a few requests each."""

import asyncio
from contextlib import ExitStack

import pytest
from openai import Timeout

from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import ScriptedEndpoint, Turn
from coordinator.endpoint.transports import AT_ONCE, Transports
from coordinator.errors import ConfigError

ADDRESS = "http://127.0.0.1:1/v1"


async def test_a_pool_serves_a_few_requests_at_once_and_is_taken_again() -> None:
    transports = Transports(ADDRESS, "key", Timeout(1.0))
    with ExitStack() as stack:
        first = [stack.enter_context(transports.lend()) for _ in range(AT_ONCE)]
        second = [stack.enter_context(transports.lend()) for _ in range(AT_ONCE)]
        assert len({id(client) for client in first}) == len({id(client) for client in second}) == 1
        assert first[0] is not second[0]
    with transports.lend() as again:
        assert again is first[0]
    await transports.close()


async def test_it_may_be_closed_under_a_request() -> None:
    transports = Transports(ADDRESS, "key", Timeout(1.0))
    with transports.lend() as client:
        await transports.close()
        assert client.is_closed()


@pytest.mark.parametrize("address", ["ftp://host/v1", "host/v1", "http:///v1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL is not an http address"):
        Transports(address, "key", Timeout(1.0))


async def test_many_requests_at_once_are_all_answered_over_several_pools() -> None:
    with ScriptedEndpoint(lambda messages: Turn(f"to {messages[-1]['content']}", delay_s=0.2)) as endpoint:
        client = ModelClient(ModelSettings("scripted", base_url=endpoint.base_url))
        asked = [client.ask([{"role": "user", "content": str(n)}], None, lambda _: None) for n in range(3 * AT_ONCE)]
        replies = await asyncio.gather(*asked)
        await client.close()
    assert [reply.text for reply in replies] == [f"to {n}" for n in range(3 * AT_ONCE)]
