"""MCP servers on a node, the official SDK's at the far end: over HTTP, and as children of the node."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.engine import DockerEngine
from tests.conftest import Until
from tests.orders import box_order, call_order
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.mcp import McpTool
from tools.schema import function_schema, parse_arguments
from worker.boxes import Boxes
from worker.contract.extras import BoxExtras
from worker.contract.mcp import MCP_FILE, McpListing, McpServer, McpServers
from worker.contract.orders import CallKey, CallOrder, WorkspaceMode
from worker.gates.gate import GateCall
from worker.mcp.entry import Mcp
from worker.mcp.naming import MOST_CHARS, tool_names
from worker.spill import SpillFile

STOCK = Path(__file__).parents[1] / "mcp_servers" / "stock.py"
LIBRARY = sysconfig.get_paths()["purelib"]
TOKEN = "a-token-of-some-length"


def open_python() -> str:
    """Return an interpreter of this version that any user may run."""
    for path in ("/usr/bin/python3", sys.executable):
        version = "import sys; print(sys.version_info[:2])"
        if shutil.which(path) and subprocess.run([path, "-c", version], capture_output=True, text=True).stdout == (
            f"{sys.version_info[:2]}\n"
        ):
            return path
    return sys.executable


class Node:
    """The MCP side of a node, with one session."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Where a user of no rights gets to.
        self.open = Path(tempfile.mkdtemp(dir="/tmp"))
        self.open.chmod(0o711)
        self.scratch = self.open / "scratch"
        self.mcp = Mcp(Boxes(cast(DockerEngine, None), 20), self.scratch)
        self.order = box_order(session_dir=directory, workspace_mode=WorkspaceMode.COPY, extras=BoxExtras(mcp="some"))
        self.calls = 0

    def has(self, *servers: McpServer) -> McpListing:
        (self.directory / MCP_FILE).write_text(McpServers(servers=servers).model_dump_json())
        listing = self.mcp.listing(self.order)
        assert listing is not None
        return listing

    def tool(self, name: str) -> McpTool:
        found = self.mcp.tool(self.call_order(name, {}))
        assert found is not None, name
        return found

    def call_order(self, name: str, arguments: dict[str, Any]) -> CallOrder:
        self.calls += 1
        key = CallKey(session="s1", generation=1, step=1, index=self.calls)
        return call_order(name, arguments, key=key, box=self.order, principal="local")

    def gate_call(self, name: str, *, joining: bool = False, **arguments: Any) -> GateCall:
        tool = self.tool(name)
        order = self.call_order(name, arguments)
        spill = SpillFile(self.directory, order.key)
        return GateCall(order, cast(Any, tool), parse_arguments(tool, arguments), spill, joining)

    def run(self, name: str, **arguments: Any) -> ToolResult:
        return self.mcp.run(self.gate_call(name, **arguments))

    def fails(self, name: str, **arguments: Any) -> ToolFailure:
        with pytest.raises(ToolFailure) as caught:
            self.run(name, **arguments)
        return caught.value


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.mcp.close()
    shutil.rmtree(made.open)


@pytest.fixture(scope="session")
def web_server(until: Until) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(STOCK), str(port), TOKEN])

    def is_up() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        until(is_up, "the server listens", 60)
        yield f"http://localhost:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def over_http(url: str, **more: Any) -> McpServer:
    return McpServer(name="web", url=url, headers={"X-Key": TOKEN}, secrets=(TOKEN,), **{"allow_private": True, **more})


def child(**more: Any) -> McpServer:
    env = {"PYTHONPATH": LIBRARY, "STOCK_KEY": "sesame-sesame"}
    given = {"command": open_python(), "args": (str(STOCK),), "env": env, "secrets": ("sesame-sesame",), **more}
    return McpServer(name="own", where="worker", start_s=60, **given)


def both_ways(node: Node, prefix: str) -> None:
    """What holds however a server is reached."""
    counted = node.tool(f"{prefix}count")
    schema = function_schema(counted)["function"]
    assert schema["description"] == "Count what lies on a shelf."
    assert schema["parameters"]["properties"].keys() == {"shelf", "least"}
    assert schema["parameters"]["required"] == ["shelf"]
    assert node.run(f"{prefix}count", shelf="abc", least=2).text == "abc: 5 pieces"
    # The server knows its arguments best.
    wrong = node.run(f"{prefix}count", least=2)
    assert wrong.error_code is ErrorCode.EXECUTION_ERROR
    assert "shelf" in wrong.text
    failed = node.run(f"{prefix}fail")
    assert (failed.error_code, "the shelf is locked" in failed.text) == (ErrorCode.EXECUTION_ERROR, True)
    picture = node.run(f"{prefix}picture")
    assert picture.status == "partial"
    assert picture.text == "a shelf:\n[an image of 1000 bytes (image/png) is left out: only text can be shown]"
    assert len(node.run(f"{prefix}large", size=3_000_000).text) == 3_000_000


def changes_are_seen(node: Node, prefix: str, until: Callable[..., None]) -> None:
    before = node.mcp.digest(node.order)
    assert node.run(f"{prefix}grow").text == "grown"
    until(lambda: node.mcp.digest(node.order) != before, "the change is seen", 90)
    listing = node.mcp.listing(node.order)
    assert listing is not None
    (extra,) = [tool.name for tool in listing.tools if "extra" in tool.name]
    assert extra.startswith(f"{prefix}an_extra_tool_")
    assert node.run(extra).text == "extra"


def ends_by_itself(node: Node, name: str, mark: Path, until: Callable[..., None]) -> None:
    """A cancel reaches the server, and the call has its answer."""
    call = node.gate_call(name, seconds=600, mark=str(mark))
    failures: list[ToolFailure] = []

    def run() -> None:
        try:
            node.mcp.run(call)
        except ToolFailure as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: mark.exists() and mark.read_text() == "begun", "the call runs", 90)
    node.mcp.cancel([str(call.order.key)])
    thread.join(60)
    assert [failure.code for failure in failures] == [ErrorCode.CANCELLED]
    until(lambda: mark.read_text() == "cancelled", "the server heard of it", 90)


def test_a_server_over_http(node: Node, web_server: str, tmp_path: Path, until: Until) -> None:
    listing = node.has(over_http(web_server))
    assert listing.notes == ()
    assert "web__count" in [tool.name for tool in listing.tools]
    assert all(tool.is_outside and not tool.reads for tool in listing.tools)
    assert node.tool("web__count").effect == "acts_outside"
    both_ways(node, "web__")
    ends_by_itself(node, "web__wait", tmp_path / "mark", until)
    changes_are_seen(node, "web__", until)


def test_an_address_inside_is_refused_unless_the_settings_allow_it(node: Node, web_server: str) -> None:
    listing = node.has(over_http(web_server, allow_private=False, start_s=20))
    assert listing.tools == ()
    assert "address that boxes may not reach: loopback" in listing.notes[0]
    assert TOKEN not in listing.notes[0]


def test_a_wrong_key_is_a_note_and_no_more(node: Node, web_server: str) -> None:
    server = over_http(web_server, start_s=20).model_copy(update={"headers": {"X-Key": "no"}})
    listing = node.has(server)
    assert listing.tools == ()
    assert "web cannot be used" in listing.notes[0]


def test_a_server_on_the_node_has_a_user_of_its_own_and_none_of_its_secrets(node: Node, until: Until) -> None:
    os.environ["SANDHOG_REDIS_URL"] = "redis://secret"
    try:
        listing = node.has(child(trusts_read_only=True))
    finally:
        del os.environ["SANDHOG_REDIS_URL"]
    assert listing.notes == ()
    both_ways(node, "own__")

    told = node.run("own__where").text
    assert "SANDHOG_REDIS_URL" not in told
    assert "[secret of own]" in told
    assert "sesame" not in told
    assert str(node.scratch) in told
    if os.geteuid() == 0:
        assert '"uid":2' in told.replace(" ", "")

    # Its word that it only reads counts, since the settings say so.
    arguments = parse_arguments(node.tool("own__count"), {"shelf": "a"})
    assert node.tool("own__count").is_concurrency_safe(cast(Any, arguments))
    assert (node.tool("own__count").effect, node.tool("own__wait").effect) == ("reads", "acts_outside")

    changes_are_seen(node, "own__", until)
    died = node.fails("own__die")
    assert died.code is ErrorCode.INTERNAL_ERROR
    assert "may have run" in died.message
    # The next call starts it again: what had grown is gone.
    assert node.run("own__count", shelf="a").text == "a: 1 pieces"
    homes = list(node.scratch.iterdir())
    assert len(homes) == 1
    node.mcp.end("s1")
    assert list(node.scratch.iterdir()) == []


def test_a_call_that_takes_too_long_is_a_timeout(node: Node) -> None:
    node.has(child(timeout_s=0.5))
    assert node.fails("own__wait", seconds=600).code is ErrorCode.TIMEOUT
    assert node.run("own__count", shelf="a").status == "success"


def test_a_server_that_does_not_start_is_a_note_and_is_not_tried_at_once_again(node: Node) -> None:
    listing = node.has(McpServer(name="gone", where="worker", command="/no/such/program", start_s=20))
    assert listing.tools == ()
    assert "gone cannot be used" in listing.notes[0]
    again = node.mcp.listing(node.order)
    assert again is not None
    assert "it is tried again in" in again.notes[0]


def test_a_join_starts_nothing(node: Node, web_server: str) -> None:
    node.has(over_http(web_server))
    with pytest.raises(ToolFailure) as caught:
        node.mcp.run(node.gate_call("web__count", joining=True, shelf="a"))
    assert caught.value.code is ErrorCode.OUTCOME_UNKNOWN


def test_names_fit_every_endpoint_and_differ() -> None:
    pairs = [("a", "b"), ("a", "b c"), ("a", "b.c"), ("a.b", "c"), ("a", "x" * 200), ("a", "x" * 201), ("ä", "b")]
    names = tool_names(pairs)
    assert names["a", "b"] == "a__b"
    assert len(set(names.values())) == len(pairs)
    assert all(len(name) <= MOST_CHARS and name.isascii() and "." not in name for name in names.values())
    assert tool_names(reversed(pairs)) == names
