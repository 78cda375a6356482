"""Channels from terminals into boxes, over a real Redis: both ends, and boxes of plain processes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.channel import Channel, FarPipe, open_channel
from coordinator.cluster.store import connect
from coordinator.errors import ChannelOver
from sandbox.box import Box
from sandbox.process_engine import ProcessEngine
from sandbox.wire import STREAM_CHUNK_BYTES, STREAM_WINDOW, TTY_MOST, stream_cost
from tests.conftest import Until
from tests.sandbox.conformance.conftest import process_spec
from tests.sandbox.conformance.test_pipes import SERVER
from worker.channels.doors import BOX_CHANNELS_MAX, Doors
from worker.contract import channels, keys
from worker.contract.channels import WINDOW, ChannelFrame, ChannelOrder, Command, Connection, Do, Size, Wanted

WAIT_S = 60
SESSION = "20300131-120000-aaaaaaaa"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    engine = ProcessEngine("channels", tmp_path_factory.mktemp("records"), allow_no_isolation=True)
    box = engine.start(process_spec(tmp_path_factory.mktemp("box")), SESSION, 1)
    yield box
    box.close()
    engine.close()


@pytest.fixture
def boxes(box: Box) -> dict[str, Box]:
    """The node's boxes by session; a test may take one away."""
    return {SESSION: box}


@pytest.fixture
def doors(redis_client: redis.Redis, boxes: dict[str, Box]) -> Iterator[Doors]:
    doors = Doors(redis_client, "node", boxes.get)
    doors.start()
    yield doors
    doors.close()


Opens = Callable[..., Any]


@pytest.fixture
async def opens(redis_url: str, doors: Doors) -> AsyncIterator[Opens]:
    """Opens channels to the box."""
    client = connect(redis_url, blocking_s=1)

    def opened(session: str = SESSION) -> Any:
        return open_channel(client, "node", session, purpose="shell", actor="ann@here")

    yield opened
    await client.aclose()


class Heard:
    """All that came of a pipe."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.has_eof = False
        self.last: ChannelFrame | None = None

    async def listen(self, pipe: FarPipe) -> "Heard":
        async with asyncio.timeout(WAIT_S):
            async for frame, body in pipe.frames():
                self.out += body if frame.do is Do.DATA else b""
                self.err += body if frame.do is Do.ERRORS else b""
                self.has_eof |= frame.do is Do.END
                self.last = frame
        return self


async def run(channel: Channel, *argv: str) -> Heard:
    pipe = await channel.open(Command(argv=argv))
    return await Heard().listen(pipe)


async def test_a_command_is_run_and_its_output_errors_and_exit_code_come_back(opens: Opens) -> None:
    async with opens() as channel:
        heard = await run(channel, "sh", "-c", "echo out; echo err >&2; exit 5")
        assert (bytes(heard.out), bytes(heard.err)) == (b"out\n", b"err\n")
        assert heard.last is not None
        assert (heard.last.exit_code, heard.last.words) == (5, "it ended with exit code 5")
        killed = await run(channel, "sh", "-c", "kill -9 $$")
        assert killed.last is not None
        assert killed.last.signal == 9
        missing = await run(channel, "/no/such/program")
        assert missing.last is not None
        assert "could not be started" in missing.last.words


async def test_what_is_written_arrives_whole_and_no_more_lies_in_redis_than_the_window(
    opens: Opens, redis_client: redis.Redis, until: Until
) -> None:
    data = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(40_000))
    async with opens() as channel:
        pipe = await channel.open(Command(argv=("cat",)))
        writing = asyncio.create_task(pipe.write(data))
        heard = Heard()
        frames = pipe.frames()
        # Nobody listens: it stands still, at the box's windows and ours.
        sizes: list[int] = []

        def stands_still() -> bool:
            sizes.append(_bytes_in(redis_client, channel))
            return len(sizes) > 20 and len(set(sizes[-20:])) == 1 and sizes[-1] > 0

        await asyncio.to_thread(until, stands_still, "nothing more comes")
        assert not writing.done()
        assert max(sizes) < 3 * WINDOW
        async with asyncio.timeout(WAIT_S):
            async for frame, body in frames:
                heard.out += body if frame.do is Do.DATA else b""
                if len(heard.out) == len(data):
                    await writing
                    await pipe.end()
        assert heard.out == data


def _bytes_in(client: redis.Redis, channel: Channel) -> int:
    streams: list[Any] = [client.xrange(name) for name in (channel._up, channel._down)]
    return sum(len(fields[b"body"]) for entries in streams for _, fields in entries)


async def test_a_shell_without_a_name_has_a_terminal_of_the_size_that_was_asked_for(opens: Opens) -> None:
    async with opens() as channel:
        pipe = await channel.open(Command(size=Size(rows=31, cols=99), term="vt100"))
        await pipe.write(b"stty size; echo $TERM; read x; stty size; exit 3\n")
        heard = bytearray()
        async with asyncio.timeout(WAIT_S):
            async for _, body in pipe.frames():
                heard += body
                if b"vt100\r\n" in heard and b"31 99" in heard:
                    await pipe.resize(Size(rows=50, cols=80))
                    await pipe.write(b"go on\n")
                    break
        last = await Heard().listen(pipe)
        assert b"50 80" in last.out
        assert last.last is not None
        assert last.last.exit_code == 3


async def test_connections_reach_a_port_of_the_box_and_a_missing_one_says_so(opens: Opens) -> None:
    async with opens() as channel:
        server = await channel.open(Command(argv=("python3", "-c", SERVER)))
        port = 0
        async for _, body in server.frames():
            if body:
                port = int(body)
                break
        calls = await asyncio.gather(*(channel.open(Connection(port=port)) for _ in range(30)))
        for number, call in enumerate(calls):
            await call.write(b"later: %d" % number)
            await call.end()
        heard = await asyncio.gather(*(Heard().listen(call) for call in calls))
        assert [bytes(one.out)[::-1] for one in heard] == [b"later: %d" % number for number in range(30)]
        assert all(one.has_eof for one in heard)
        await server.close()
        nobody = await Heard().listen(await channel.open(Connection(port=1)))
        assert nobody.last is not None
        assert "nothing listens on port 1" in nobody.last.words


async def test_a_pipe_that_is_closed_ends_its_command(opens: Opens) -> None:
    async with opens() as channel:
        pipe = await channel.open(Command(argv=("sleep", "4715")))
        await pipe.close()
        heard = await Heard().listen(pipe)
        assert heard.last is not None
        assert heard.last.signal == 9
        # What comes for it later is of no account.
        await pipe.write(b"late")
        assert (await run(channel, "echo", "alive")).out == b"alive\n"


async def test_a_session_without_a_box_is_told_so(opens: Opens) -> None:
    async with opens("20300131-120000-bbbbbbbb") as channel:
        with pytest.raises(ChannelOver, match="has no box now"):
            await run(channel, "true")


async def test_the_end_of_the_box_ends_the_channel_and_says_so(
    opens: Opens, boxes: dict[str, Box], tmp_path: Path
) -> None:
    engine = ProcessEngine("ending", tmp_path / "records", allow_no_isolation=True)
    boxes[SESSION] = engine.start(process_spec(tmp_path), SESSION, 1)
    try:
        async with opens() as channel:
            pipe = await channel.open(Command(argv=("sh", "-c", "echo begun; sleep 4716")))
            async for _, body in pipe.frames():
                if body:
                    break
            boxes.pop(SESSION).close()
            # Whichever is seen first, the end of its link or that the session has it no more.
            with suppress(ChannelOver):
                last = (await Heard().listen(pipe)).last
                assert last is not None
                assert "link" in last.words
            async with asyncio.timeout(WAIT_S):
                assert await channel.over() == "the box has ended"
    finally:
        engine.close()


async def test_a_box_is_in_use_as_long_as_somebody_reaches_into_it(opens: Opens, box: Box, until: Until) -> None:
    async with opens() as channel:
        await run(channel, "true")
        assert box.idle_s == 0
    await asyncio.to_thread(until, lambda: box.idle_s > 0, "it is idle again")


async def test_a_terminal_that_is_gone_leaves_nothing_running(
    redis_client: redis.Redis, box: Box, until: Until
) -> None:
    doors = Doors(redis_client, "node", {SESSION: box}.get, silent_s=1.0)
    doors.start()
    order = ChannelOrder(channel="f" * 32, session=SESSION, purpose="shell", actor="ann@here")
    opened = ChannelFrame(do=Do.OPEN, pipe=1, wanted=Command(argv=("sleep", "4717")))
    redis_client.xadd(keys.channel_up(order.channel), opened.fields())  # type: ignore[arg-type]
    redis_client.rpush(keys.channel_orders("node"), order.model_dump_json())
    await asyncio.to_thread(until, lambda: _said(redis_client, order, Do.OPENED), "it runs")
    await asyncio.to_thread(until, lambda: _said(redis_client, order, Do.OVER), "it is given up")
    await asyncio.to_thread(until, lambda: box.idle_s > 0, "nobody is in the box")
    assert 0 < int(redis_client.ttl(keys.channel_down(order.channel))) <= keys.CHANNEL_TTL_S
    doors.close()


def _said(client: redis.Redis, order: ChannelOrder, do: Do) -> bool:
    entries: Any = client.xrange(keys.channel_down(order.channel))
    return any(channels.read_frame(fields)[0].do is do for _, fields in entries)


@pytest.mark.parametrize(
    "fields",
    [
        {"head": b"{", "body": b""},
        {"body": b"x"},
        {"head": b'{"do": "open", "pipe": 1}', "body": b""},
        {"head": b'{"do": "open", "pipe": 1, "wanted": {"kind": "connection", "port": 70000}}', "body": b""},
        {"head": b'{"do": "data", "pipe": 1}', "body": b"x" * 20_000},
        {"head": b'{"do": "credit", "n": -1}', "body": b""},
    ],
)
def test_what_is_no_frame_ends_the_channel(
    redis_client: redis.Redis, doors: Doors, fields: Any, until: Until, box: Box
) -> None:
    order = ChannelOrder(channel="e" * 32, session=SESSION, purpose="shell", actor="ann@here")
    redis_client.xadd(keys.channel_up(order.channel), fields)
    redis_client.rpush(keys.channel_orders("node"), b"no order", order.model_dump_json())
    until(lambda: _said(redis_client, order, Do.OVER), "it is over")


async def test_a_box_takes_so_many_terminals(opens: Opens) -> None:
    async def taken(channel: Channel) -> bool:
        return (await run(channel, "echo", "in")).out == b"in\n"

    stack: list[Any] = []
    try:
        for _ in range(BOX_CHANNELS_MAX):
            stack.append(opens())
            assert await taken(await stack[-1].__aenter__())
        async with opens() as one_more:
            with pytest.raises(ChannelOver, match="end one of them"):
                await taken(one_more)
    finally:
        for each in stack:
            await each.__aexit__(None, None, None)


async def test_a_node_that_ends_tells_its_terminals(opens: Opens, doors: Doors) -> None:
    async with opens() as channel:
        assert (await run(channel, "echo", "in")).out == b"in\n"
        closing = asyncio.create_task(asyncio.to_thread(doors.close))
        async with asyncio.timeout(WAIT_S):
            assert "the node is ending" in await channel.over()
        await closing


async def test_a_channel_leaves_nothing_in_redis_that_stays(opens: Opens, redis_client: redis.Redis) -> None:
    async with opens() as channel:
        await run(channel, "true")
    for name in redis_client.scan_iter("sandhog:channel:*"):
        assert 0 < int(redis_client.ttl(name)) <= keys.CHANNEL_TTL_S


def test_a_channel_has_the_bounds_of_the_box() -> None:
    assert (WINDOW, channels.CHUNK_BYTES, channels.TTY_MOST) == (STREAM_WINDOW, STREAM_CHUNK_BYTES, TTY_MOST)
    assert channels.frame_cost(7) == stream_cost(7)


def test_every_kind_of_wish_survives_its_frame() -> None:
    wishes: list[Wanted] = [
        Command(argv=("a", "b"), size=Size(rows=1, cols=1000), term="xterm-256color"),
        channels.PackTree(path="x"),
        channels.UnpackTree(path="y"),
        Connection(port=65_535),
    ]
    for wish in wishes:
        fields = {
            str(name).encode(): value for name, value in ChannelFrame(do=Do.OPEN, wanted=wish).fields(b"b").items()
        }
        packed = {name: value.encode() if isinstance(value, str) else value for name, value in fields.items()}
        frame, body = channels.read_frame(packed)
        assert (frame.wanted, body) == (wish, b"b")


def test_doors_that_close_leave_nothing_in_redis(redis_client: redis.Redis) -> None:
    # Nobody waits for an order any more: the one that ends the wait is taken by nobody.
    doors = Doors(redis_client, "node", lambda session: None)
    doors.close()

    assert redis_client.exists(keys.channel_orders("node")) == 0
