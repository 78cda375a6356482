"""Ending tasks for certain."""

import asyncio

from coordinator.ending import end


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)

    await end(task)

    assert task.cancelled()
    assert swallowed == 3


async def test_tasks_that_ended_by_themselves_are_no_news() -> None:
    async def fails() -> None:
        raise ValueError("looked at")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})

    await end(task)
    await end()
