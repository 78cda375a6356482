"""The places of an endpoint: found out, fair, and no failure to wait for."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.endpoint.limiter import EndpointLimiter
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import ScriptedEndpoint, Turn


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("sessions", "places"), [(30, 1), (100, 4)])
async def test_no_session_fails_where_many_share_a_small_endpoint(sessions: int, places: int) -> None:
    def script(messages: list[dict[str, Any]]) -> Turn:
        return Turn(f"echo {messages[-1]['content']}", delay_s=0.005)

    async def soon(seconds: float) -> None:
        await asyncio.sleep(seconds / 50)

    with ScriptedEndpoint(script, max_requests=places) as endpoint:
        client = ModelClient(ModelSettings("m", base_url=endpoint.base_url), sleep=soon)

        async def session(number: int) -> list[str]:
            said = []
            for step in range(2):
                messages = [{"role": "user", "content": f"{number}.{step}"}]
                said.append((await client.ask(messages, None, lambda _: None)).text)
            return said

        replies = await asyncio.gather(*(session(number) for number in range(sessions)))
        limiter = client.limiter
        await client.close()
    assert replies == [[f"echo {number}.{step}" for step in range(2)] for number in range(sessions)]
    assert limiter.refusals == endpoint.refused
    # What was asked in vain stays a small part, however few places there are.
    assert endpoint.refused < 30 + sessions / 4
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


async def test_places_are_given_in_the_order_of_asking() -> None:
    limiter, order = EndpointLimiter(1), []

    async def hold(number: int, ticket: int) -> None:
        async with limiter.place(ticket):
            order.append(number)
            await asyncio.sleep(0)

    tickets = [limiter.ticket() for _ in range(5)]
    await asyncio.gather(*(hold(number, ticket) for number, ticket in enumerate(tickets)))
    assert order == [0, 1, 2, 3, 4]


async def test_a_request_that_was_refused_goes_before_those_that_came_later() -> None:
    limiter, order = EndpointLimiter(1), []
    early, late = limiter.ticket(), limiter.ticket()

    async def hold(name: str, ticket: int) -> None:
        async with limiter.place(ticket):
            order.append(name)

    async with limiter.place(limiter.ticket()):
        waiting = [asyncio.create_task(hold("late", late))]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(hold("early", early)))
        await asyncio.sleep(0)
        assert limiter.waiting == 2
    await asyncio.gather(*waiting)
    assert order == ["early", "late"]


async def one(limiter: EndpointLimiter, then: Callable[[], None]) -> None:
    async with limiter.place(limiter.ticket()):
        then()


async def test_places_grow_with_replies_up_to_the_setting() -> None:
    limiter = EndpointLimiter(12)
    assert limiter.places == 8
    for _ in range(10):
        await one(limiter, limiter.replied)
    assert limiter.places == 12


async def test_one_burst_of_refusals_halves_the_places_once_and_growth_is_slow_near_them() -> None:
    clock = Clock()
    limiter = EndpointLimiter(64, clock=clock)
    sent_at = clock.now_s
    async with contextlib.AsyncExitStack() as held:
        for _ in range(4):
            await held.enter_async_context(limiter.place(limiter.ticket()))
        clock.now_s = 1.0
        for _ in range(3):
            limiter.refused(sent_at, None)
    assert (limiter.places, limiter.refusals) == (2, 3)
    replies = 0
    while limiter.places < 4:
        await one(limiter, limiter.replied)
        replies += 1
    assert 10 < replies < 100


async def test_a_pause_that_the_endpoint_asks_for_holds_for_all_and_has_a_bound() -> None:
    clock = Clock()
    limiter = EndpointLimiter(64, clock=clock)
    await one(limiter, lambda: limiter.refused(clock.now_s, 1_000.0))
    waiting = asyncio.create_task(one(limiter, limiter.replied))
    await asyncio.sleep(0)
    assert limiter.waiting == 1
    clock.now_s = 61.0
    # Whoever asks next after the pause lets in who waited.
    await one(limiter, limiter.replied)
    await waiting
    assert limiter.waited_s == 61.0


async def test_who_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    limiter = EndpointLimiter(1)
    async with limiter.place(limiter.ticket()):
        waiting = [asyncio.create_task(one(limiter, limiter.replied)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
        assert limiter.waiting == 2
    # Cancelled in the very moment in which the place is given: it goes to the next.
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    await one(limiter, limiter.replied)


async def test_a_wait_for_a_place_is_told_and_is_no_try() -> None:
    clock = Clock()
    limiter = EndpointLimiter(1, clock=clock)
    waits: list[float] = []
    with ScriptedEndpoint([Turn("hi")]) as endpoint:
        settings = ModelSettings("m", base_url=endpoint.base_url, max_tries=1, max_retry_s=0.0)
        client = ModelClient(settings, limiter=limiter, clock=clock)
        async with limiter.place(limiter.ticket()):
            messages = [{"role": "user", "content": "go"}]
            asking = asyncio.create_task(client.ask(messages, None, lambda _: None, on_wait=waits.append))
            await asyncio.sleep(0)
            clock.now_s = 500.0
        assert (await asking).text == "hi"
        await client.close()
    assert waits == [500.0]
