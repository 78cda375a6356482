"""What the coordinator makes of breakers: the tools that a model is shown, and the table for operators."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from coordinator.cluster.store import Store, connect
from coordinator.session.breakers import Breakers, Listed, ShownTools, table
from coordinator.session.events import Event
from coordinator.session.session_events import Notice
from coordinator.session.step_events import ToolsShown
from tools.registry import Registry, builtin_registry
from worker.contract import breaker, keys, metadata
from worker.contract.breaker import Ending, Phase
from worker.contract.metadata import SeenVersion
from worker.contract.orders import CallKey

VERSION = SeenVersion(dev=1, ino=2, size=3, mtime_ns=4, ctime_ns=5, sha256="a" * 64)


class Faults:
    """Lets tools fail, as a worker's gate reports it."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._report = client.register_script(breaker.REPORT)
        self._count = 0

    def __call__(self, session: str, tool: str, count: int = 3, *, recovery_ms: int = 300_000, node: str = "a") -> None:
        for _ in range(count):
            self._count += 1
            self._tell(session, tool, Ending.FAULT, recovery_ms, node)

    def of_node(self, tool: str, node: str = "a") -> None:
        for session in ("x1", "x2", "x3"):
            self._count += 1
            self._tell(session, tool, Ending.FAULT, 300_000, node, at_node=Ending.FAULT)

    def _tell(
        self, session: str, tool: str, ending: Ending, recovery_ms: int, node: str, at_node: Ending = Ending.NEUTRAL
    ) -> None:
        token, ttl_ms = f"t{self._count}", breaker.RECORD_TTL_MS
        arguments: list[str | int] = [tool, token, ttl_ms, session, 3, recovery_ms, "TIMEOUT", ending, at_node]
        self._report(keys=[keys.session_breakers(session), keys.node_breakers(node)], args=arguments)


@pytest.fixture
def fail(redis_client: redis.Redis) -> Faults:
    return Faults(redis_client)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    opened = connect(redis_url)
    yield opened
    await opened.aclose()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def tools(client: Redis, told: list[str]) -> ShownTools:
    def emit(event: Event) -> None:
        # The list itself is kept for readers of the transcript.
        assert isinstance(event, Notice | ToolsShown)
        if isinstance(event, Notice):
            told.append(event.text)

    return ShownTools(Breakers(client), builtin_registry(), "s1", emit, strict=False)


async def names(tools: ShownTools, node: str | None = "a") -> list[str]:
    return [schema["function"]["name"] for schema in await tools.schemas(node)]


async def test_a_tool_that_is_switched_off_is_left_out_and_said(
    tools: ShownTools, fail: Faults, told: list[str]
) -> None:
    every = await names(tools)
    fail("s1", "Bash")
    fail("s1", "Grep", count=2)
    fail("s2", "Read")

    assert await names(tools) == [name for name in every if name != "Bash"]
    assert await names(tools) == [name for name in every if name != "Bash"]
    assert told == ["Bash is switched off for 300 s: 3 faults in a row (TIMEOUT)."]
    assert tools.changes == 1


async def test_after_the_cool_down_it_is_shown_by_the_clock_alone(
    tools: ShownTools, fail: Faults, told: list[str], redis_client: redis.Redis, until: Callable[..., None]
) -> None:
    every = await names(tools)
    fail("s1", "Bash", recovery_ms=700)
    before = redis_client.hgetall(keys.session_breakers("s1"))
    assert "Bash" not in await names(tools)

    while "Bash" not in (shown := await names(tools)):
        assert redis_client.hgetall(keys.session_breakers("s1")) == before
    assert shown == every
    assert redis_client.hgetall(keys.session_breakers("s1")) == before, "looking changes nothing"
    assert told[1:] == ["Bash is shown to the model again; the next call tries it."]
    assert tools.changes == 2


async def test_what_is_off_on_the_sessions_node_is_left_out(tools: ShownTools, fail: Faults) -> None:
    fail.of_node("Bash", node="a")
    assert "Bash" in await names(tools, None)
    assert "Bash" in await names(tools, "b")
    assert "Bash" not in await names(tools, "a")


async def test_no_tool_of_a_node_left_is_no_tool_at_all(tools: ShownTools, fail: Faults) -> None:
    for name in builtin_registry().names():
        found = builtin_registry().get(name)
        if found is not None and found.runs_on != "coordinator":
            assert await names(tools) != []
            fail("s1", name)
    assert await names(tools) == []


async def test_a_session_without_tools_has_none_to_lose(client: Redis) -> None:
    assert await ShownTools(Breakers(client), Registry([]), "s1", print, strict=False).schemas("a") == []


async def test_while_redis_is_away_the_tools_stay_as_they_were(second_redis: str) -> None:
    url = f"unix://{second_redis}"
    client = connect(url)
    tools = ShownTools(Breakers(client), builtin_registry(), "s1", lambda _: None, strict=False)
    with redis.Redis.from_url(url) as other:
        Faults(other)("s1", "Bash")
        before = await names(tools)
        other.shutdown(nosave=True)
    assert "Bash" not in before
    assert await names(tools) == before
    await client.aclose()


async def test_operators_see_every_breaker(client: Redis, fail: Faults) -> None:
    fail("s1", "Bash")
    fail("s2", "Grep", count=1)
    fail.of_node("Read", node="n-1")

    listed = await Breakers(client).every()

    shown = [(one.scope, one.name, one.tool, one.phase, one.faults) for one in listed if one.name[0] != "x"]
    assert shown == [
        ("node", "n-1", "Read", Phase.OPEN, 3),
        ("session", "s1", "Bash", Phase.OPEN, 3),
        ("session", "s2", "Grep", Phase.CLOSED, 1),
    ]


def listed(**changes: object) -> Listed:
    facts = {"scope": "session", "name": "s1", "tool": "Bash", "phase": "open", "faults": 3, "last_fault": "TIMEOUT"}
    return Listed.model_validate({**facts, "retry_in_s": 287.4, "is_probing": False, **changes})


def test_the_table_holds_one_line_each() -> None:
    lines = table(
        [listed(), listed(tool="Grep", phase="half_open", is_probing=True), listed(name="\x1b[2J", retry_in_s=0.0)]
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["SCOPE", "NAME", "TOOL", "STATE", "FAULTS", "LAST", "RETRY", "IN"],
        ["session", "s1", "Bash", "open", "3", "TIMEOUT", "287", "s"],
        ["session", "s1", "Grep", "half", "open,", "probing", "3", "TIMEOUT", "287", "s"],
        ["session", "␛[2J", "Bash", "open", "3", "TIMEOUT", "now"],
    ]
    assert table([]) == "No tool has faults."


def test_the_command_prints_a_table_or_json(redis_url: str, fail: Faults, tmp_path: Path) -> None:
    fail("s1", "Bash")
    environment = {**os.environ, "SANDHOG_REDIS_URL": redis_url, "SANDHOG_STATE_DIR": str(tmp_path)}

    def run(*options: str) -> str:
        argv = [sys.executable, "-c", "from coordinator.start import main; main()", "breakers", *options]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert "session  s1    Bash  open   3" in run()
    (one,) = json.loads(run("--json"))["breakers"]
    assert one["tool"] == "Bash"
    assert 200 < one["retry_in_s"] <= 300


class TestNarrowing:
    KEY = CallKey(session="s1", generation=1, step=2, index=0)

    async def seen(self, client: Redis) -> metadata.FileSeen | None:
        return metadata.decode(await client.hget(keys.seen("s1"), metadata.field("/workspace/a")))

    async def store(self, client: Redis, record: metadata.FileSeen) -> None:
        await client.hset(keys.seen("s1"), metadata.field("/workspace/a"), f"1 {metadata.encode(record)}".encode())

    async def test_lines_that_the_steps_budget_cut_away_were_not_shown(self, client: Redis) -> None:
        await self.store(client, metadata.shown(None, VERSION, self.KEY, [(1, 100)], 100))
        await Store(client).narrow_seen(self.KEY, "/workspace/a", [(1, 1), (2, 2), (100, 100)])
        record = await self.seen(client)
        assert record is not None
        assert record.missing() == ((3, 99),)

    async def test_what_another_call_showed_or_made_stays(self, client: Redis) -> None:
        await self.store(client, metadata.made(VERSION))
        await Store(client).narrow_seen(self.KEY, "/workspace/a", [])
        record = await self.seen(client)
        assert record is not None
        assert record.missing() == ()

    async def test_a_session_that_ends_leaves_nothing(self, client: Redis, fail: Faults) -> None:
        fail("s1", "Bash")
        await self.store(client, metadata.made(VERSION))
        await Store(client).close_session("s1")
        assert await client.keys() == []
