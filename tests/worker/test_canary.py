"""A node that is connected and consumes nothing is found by its own canary."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis

from worker.canary import Canary


@dataclass
class Queue:
    """A queue that delivers, or does not."""

    delivers: bool = True
    is_away: bool = False
    is_full: bool = False
    sent: int = 0
    stuck: threading.Event = field(default_factory=threading.Event)

    def canary(self) -> Canary:
        canary = Canary(
            send=lambda: self.send(canary),
            is_reachable=lambda: not self.is_away,
            is_full=lambda: self.is_full,
            on_stuck=self.stuck.set,
            every_s=0.01,
            limit_s=0.05,
        )
        return canary

    def send(self, canary: Canary) -> None:
        if self.is_away:
            raise redis.ConnectionError("away")
        self.sent += 1
        if self.delivers:
            canary.arrive()


def test_a_queue_that_delivers_is_well_and_one_that_stops_is_stuck(until: Callable[..., None]) -> None:
    queue = Queue()
    canary = queue.canary()
    canary.start()
    try:
        until(lambda: queue.sent > 20, "many messages went through")
        assert not queue.stuck.is_set()
        queue.delivers = False
        assert queue.stuck.wait(60)
        assert not canary.is_well
        queue.delivers = True
        until(lambda: canary.is_well, "a message came through again")
    finally:
        canary.close()


@pytest.mark.parametrize("why", ["is_away", "is_full"])
def test_a_redis_that_is_away_and_a_node_that_is_full_are_no_fault_of_the_consumer(
    why: str, until: Callable[..., None]
) -> None:
    queue = Queue(delivers=False)
    setattr(queue, why, True)
    looks = threading.Semaphore(0)

    def is_full() -> bool:
        looks.release()
        return queue.is_full

    canary = Canary(
        send=lambda: queue.send(canary),
        is_reachable=lambda: not queue.is_away,
        is_full=is_full,
        on_stuck=queue.stuck.set,
        every_s=0.01,
        limit_s=0.05,
    )
    canary.start()
    try:
        if why == "is_full":
            for _ in range(20):
                assert looks.acquire(timeout=60)
        else:
            assert not queue.stuck.wait(0.3)
        assert canary.is_well
        assert not queue.stuck.is_set()
        setattr(queue, why, False)
        assert queue.stuck.wait(60), "then it is"
    finally:
        canary.close()
