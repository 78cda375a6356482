"""The line for places: who has its turn, and where, by a real Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import PlaceWanted, Turns
from worker.contract import keys
from worker.contract.orders import NodeLife


def life(node: str = "a", places: int = 2) -> NodeLife:
    return NodeLife(node=node, incarnation=f"{node}-1", places=places, lanes=8)


class Line:
    """A line on one Redis, with nodes whose places are given back by the test."""

    def __init__(self, redis_url: str) -> None:
        self.client = connect(redis_url)
        self.turns, self.store = Turns(self.client, ticket_ttl_s=3_000), Store(self.client)

    async def ask(
        self, session: str, principal: str = "p", *nodes: NodeLife, most: int | None = None, weight: int = 1
    ) -> str | None:
        """Ask once; return the node, None while the session waits."""
        wanted = PlaceWanted(principal=principal, most=most, weight=weight)
        turn = await self.turns.take(session, wanted, [(node, 0) for node in nodes or (life(),)])
        return turn.node.node if turn.node else None

    async def end(self, session: str, node: str = "a") -> None:
        await self.store.give_place(node, session)
        await self.turns.leave(session)


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    line = Line(redis_url)
    yield line
    await line.client.aclose()


async def test_a_node_takes_as_many_as_it_has_places_and_each_keeps_its_own(
    line: Line, redis_client: redis.Redis
) -> None:
    assert [await line.ask(session) for session in ("s1", "s2", "s3", "s1")] == ["a", "a", None, "a"]
    assert await line.ask("s3", "p", life("b", 1), life()) == "b"
    await line.end("s1")
    await line.end("never had one")
    assert await line.ask("s4") == "a"
    for session, node in (("s2", "a"), ("s3", "b"), ("s4", "a")):
        await line.end(session, node)
    assert redis_client.keys("sandhog:*") == [], "nothing is left of a line in which nobody stands"


async def test_the_preferred_node_is_taken_then_the_one_with_most_places(line: Line) -> None:
    nodes = [(life("warm", 1), 1), (life("small", 2), 3), (life("large", 4), 3)]

    async def where(session: str) -> str | None:
        turn = await line.turns.take(session, PlaceWanted(), nodes)
        return turn.node.node if turn.node else None

    assert [await where(f"s{n}") for n in range(8)] == [
        "warm", "large", "large", "small", "large", "small", "large", None,
    ]  # fmt: skip


def test_its_own_node_goes_before_a_warm_box_and_that_before_the_image() -> None:
    home, warm, there, bare = (
        life(name).model_copy(update=has)
        for name, has in (("home", {}), ("warm", {"warm": ("i",)}), ("there", {"images": ("i",)}), ("bare", {}))
    )
    wanted = PlaceWanted(image="i")
    ranks = [wanted.rank(one, "home") for one in (home, warm, there, bare)]
    assert ranks == sorted(set(ranks)), "each before the next"


async def test_one_principal_with_a_thousand_sessions_starves_nobody(line: Line) -> None:
    assert await line.ask("first", "flood") == "a"
    assert await line.ask("second", "flood") == "a"
    flood = [f"flood-{n:04}" for n in range(1_000)]
    for session in flood:
        assert await line.ask(session, "flood") is None
    for session in ("late-1", "late-2"):
        assert await line.ask(session, "late") is None
    turn = await line.turns.take("late-1", PlaceWanted(principal="late"), [(life(), 0)])
    assert (turn.position, turn.tickets) == (2, 1_002)

    served: list[str] = []
    running = ["first", "second"]
    while len(served) < 6:
        await line.end(running.pop(0))
        for session in [*flood[:8], "late-1", "late-2"]:
            if session not in served and await line.ask(session, session.partition("-")[0]):
                served.append(session)
                running.append(session)
                break
    assert served[:4] == ["flood-0000", "late-1", "flood-0001", "late-2"]
    assert served[4:] == ["flood-0002", "flood-0003"]


async def test_weights_share_the_turns(line: Line) -> None:
    one = life(places=1)
    assert await line.ask("now", "x", one) == "a"
    names = {"heavy": 3, "light": 1}
    waiting = [(f"{name}-{n:02}", name) for name in names for n in range(12)]
    for session, name in waiting:
        assert await line.ask(session, name, one, weight=names[name]) is None
    served, running = [], "now"
    for _ in range(12):
        await line.end(running)
        for session, name in waiting:
            if session not in served and await line.ask(session, name, one, weight=names[name]):
                served.append(session)
                running = session
                break
    assert sum(session.startswith("heavy") for session in served) == 9


async def test_a_principal_at_its_ceiling_waits_while_others_pass(line: Line) -> None:
    wide = life(places=10)
    assert [await line.ask(f"m-{n}", "many", wide, most=2) for n in range(4)] == ["a", "a", None, None]
    assert await line.ask("other", "other", wide) == "a"
    turn = await line.turns.take("m-3", PlaceWanted(principal="many", most=2), [(wide, 0)])
    assert (turn.is_at_ceiling, turn.position) == (True, 2)
    assert "as many as it may" in turn.words

    await line.end("m-0")
    # The oldest of them first, whoever asks first.
    assert await line.ask("m-3", "many", wide, most=2) is None
    assert await line.ask("m-2", "many", wide, most=2) == "a"


async def test_a_ticket_is_passed_by_whoever_wants_another_node(line: Line) -> None:
    full, free = life("full", 1), life("free", 1)
    assert await line.ask("s1", "p", full) == "full"
    assert await line.ask("pinned", "p", full) is None
    assert await line.ask("s2", "q", full, free) == "free"


async def test_nobody_passes_one_who_wants_the_same_place(line: Line) -> None:
    assert [await line.ask(f"s{n}") for n in range(4)] == ["a", "a", None, None]
    await line.end("s0")
    assert await line.ask("new") is None
    assert await line.ask("s3") is None
    assert await line.ask("s2") == "a"


async def test_a_ticket_whose_owner_died_holds_up_nobody(line: Line, redis_client: redis.Redis) -> None:
    assert [await line.ask(f"s{n}") for n in range(4)] == ["a", "a", None, None]
    await line.end("s0")
    assert await line.ask("s3") is None
    redis_client.zadd(keys.LINE_RENEWED, {"s2": 1})
    assert await line.ask("s3") == "a"


async def test_a_session_that_leaves_the_line_leaves_nothing(line: Line, redis_client: redis.Redis) -> None:
    assert [await line.ask(f"s{n}", "p", most=2) for n in range(4)] == ["a", "a", None, None]
    for n in range(4):
        await line.end(f"s{n}")
    assert redis_client.keys("sandhog:*") == []


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asks=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=60))
def test_no_node_ever_has_more_sessions_than_places(redis_url: str, asks: list[tuple[int, bool]]) -> None:
    async def play() -> None:
        line, nodes, running = Line(redis_url), (life("a", 2), life("b", 1)), dict[str, str]()
        await line.client.flushdb()
        try:
            for number, is_asking in asks:
                session = f"s{number}"
                if is_asking:
                    node = await line.ask(session, f"p{number % 3}", *nodes, most=2)
                    if node:
                        assert running.setdefault(session, node) == node
                elif session in running:
                    await line.end(session, running.pop(session))
                assert sum(node == "a" for node in running.values()) <= 2
                assert sum(node == "b" for node in running.values()) <= 1
        finally:
            await line.client.aclose()

    asyncio.run(play())


async def test_a_principal_that_redis_forgot_has_no_more_places_than_it_may(
    line: Line, redis_client: redis.Redis
) -> None:
    wide = life(places=10)
    assert [await line.ask(f"m-{n}", "many", wide, most=2) for n in range(3)] == ["a", "a", None]
    redis_client.delete(f"{keys.PLACES_OF}many", keys.PLACE_HOLDERS)
    await line.turns.count()
    assert await line.ask("m-2", "many", wide, most=2) is None
    # As after a day.
    redis_client.zadd(f"{keys.PLACES_OF}many", {"m-0": 1, "m-1": 1})
    await line.turns.count()
    assert await line.ask("m-2", "many", wide, most=2) is None
    await line.turns.leave("m-0")
    assert await line.ask("m-2", "many", wide, most=2) == "a", "who has it is known again"


async def test_a_session_without_its_place_leaves_room_below_the_ceiling_and_needs_some_again(
    line: Line, redis_client: redis.Redis
) -> None:
    wide = life(places=10)
    assert [await line.ask(f"m-{n}", "many", wide, most=1) for n in range(2)] == ["a", None]
    # Its box was ended for idleness.
    await line.store.give_place("a", "m-0")
    await line.turns.count()
    assert await line.ask("m-1", "many", wide, most=1) == "a"
    await line.turns.count()
    turn = await line.turns.take("m-0", PlaceWanted(principal="many", most=1), [(wide, 0)])
    assert turn.is_at_ceiling
    await line.end("m-1")
    assert await line.ask("m-0", "many", wide, most=1) == "a"


async def test_a_session_counts_for_whoever_has_it_now(line: Line, redis_url: str, redis_client: redis.Redis) -> None:
    theirs = Line(redis_url)
    assert await line.ask("s", "p", life("a"), most=1) == "a"
    # Another coordinator has it by now, on another node; this one has heard of that.
    await line.store.give_place("a", "s")
    assert await theirs.ask("s", "p", life("b"), most=1) == "b"
    line.turns.let_go("s")
    await theirs.turns.count()
    await line.turns.count()
    assert redis_client.zrange(f"{keys.PLACES_OF}p", 0, -1) == [b"s"]
    await theirs.client.aclose()
