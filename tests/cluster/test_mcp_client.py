"""MCP servers of whole sessions, made with the official SDK: in the box, on the node, and over HTTP."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.approvals import Decided
from coordinator.session.box_options import BoxOptions
from coordinator.session.mcp_settings import read_mcp_config
from coordinator.session.session_events import BoxReplaced, Notice
from coordinator.settings import DEFAULT_IMAGE
from tests.conftest import without_server
from tests.worker.test_mcp import LIBRARY, STOCK, TOKEN, open_python, web_server
from worker.contract.approvals import ApprovalRequest

pytestmark = [pytest.mark.docker, pytest.mark.shared_node, pytest.mark.timeout(400)]
__all__ = ["web_server"]

IMPORTED = (
    "import runpy, sys; runpy.run_path(sys.argv[1]); "
    "print(*sorted({name.partition('.')[0] for name in sys.modules}), sep='\\n')"
)


class Yes:
    """Says yes, and remembers to what."""

    waits = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.asked.append(request.tool)
        return Decided(True, by="a test")


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SDK as one would install it into an image: what the server imports, for the image's own Python."""
    version = "import sys; print(sys.version_info[:2])"
    found = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", DEFAULT_IMAGE, "python3", "-c", version],
        capture_output=True,
        text=True,
        check=True,
    )
    if found.stdout.strip() != str(sys.version_info[:2]):
        without_server("the box's Python is another one than ours: the SDK cannot be copied into it")
    directory = tmp_path_factory.mktemp("sdk")
    run = [sys.executable, "-c", IMPORTED, str(STOCK)]
    names = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        for path in Path(LIBRARY).glob(f"{name}*"):
            if path.name in (name, f"{name}.py") or path.name.startswith(f"{name}.cpython"):
                target = directory / path.name
                shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
    for path in Path(LIBRARY).glob("*.dist-info"):
        shutil.copytree(path, directory / path.name)
    directory.chmod(0o755)
    return directory


def call(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments)


def in_turn(*turns: tuple[ScriptedCall, ...]) -> list[Turn]:
    return [*(Turn(calls=calls) for calls in turns), Turn("done")]


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def tools_of(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


def box_with(config: Path, servers: dict[str, Any], **environment: str) -> BoxOptions:
    config.write_text(json.dumps({"mcpServers": servers}))
    return BoxOptions().with_mcp(read_mcp_config(config, environment))


async def test_servers_in_the_box_on_the_node_and_over_http(
    stage: Any, sdk: Path, web_server: str, tmp_path: Path
) -> None:
    shutil.copytree(sdk, stage.project / "lib")
    shutil.copy(STOCK, stage.project / "stock.py")
    servers = {
        "inside": {
            "command": "python3",
            "args": ["/workspace/stock.py"],
            "env": {"PYTHONPATH": "/workspace/lib"},
            "trust_read_only": True,
            "start_s": 120,
        },
        "beside": {
            "command": open_python(),
            "args": [str(STOCK)],
            "env": {"PYTHONPATH": LIBRARY, "STOCK_KEY": "${KEY_OF_STOCK}"},
            "where": "worker",
            "start_s": 120,
        },
        "web": {"url": web_server, "headers": {"X-Key": "${TOKEN_OF_WEB}"}, "allow_private": True, "start_s": 120},
        "broken": {"command": "/no/such/server"},
    }
    box = box_with(tmp_path / "mcp.json", servers, KEY_OF_STOCK="open-sesame", TOKEN_OF_WEB=TOKEN)
    human = Yes()
    played = await stage.play(
        in_turn(
            (call("inside__where"), call("beside__where"), call("web__count", shelf="abc")),
            (call("inside__count", shelf="a"), call("inside__count", shelf="bb"), call("inside__grow")),
            (call("inside__an_extra_tool_x"), call("inside__large", size=60_000)),
            (call("inside__die"),),
            (call("inside__count", shelf="ccc"),),
            (call("Bash", command="kill -9 -1; true"),),
            (call("inside__count", shelf="dddd"),),
            (call("inside__count", shelf="dddd"),),
        ),
        box=box,
        approver=human,
    )
    notes = [event.text for event in played.events if isinstance(event, Notice)]
    assert played.result.status == "completed", (played.result, notes)
    assert [note for note in notes if "cannot be used" in note and "broken" not in note] == []
    inside, beside, web, one, two, grown, guessed, large, died, again, _, met, anew = contents(played)

    # What acts outside of the box is asked about; what runs in it, the boxed policy lets run.
    assert human.asked == ["beside__where", "web__count"]
    told = json.loads(inside["text"])
    assert told["is_box"]
    assert told["cwd"] == "/workspace"
    assert not json.loads(beside["text"])["is_box"]
    assert json.loads(beside["text"])["secret"] == "[secret of beside]"
    assert web["text"] == "abc: 3 pieces"
    assert (one["text"], two["text"], grown["text"]) == ("a: 1 pieces", "bb: 2 pieces", "grown")

    # A list that changed is seen from the next step on, under a name that endpoints take.
    shown = [tools_of(request) for request in played.requests]
    assert "inside__count" in shown[0]
    (extra,) = set(shown[2]) - set(shown[1])
    assert extra.startswith("inside__an_extra_tool_")
    assert guessed["error"]["code"] == "UNKNOWN_TOOL"
    assert "/spill/" in large["text"]
    assert died["error"]["code"] == "INTERNAL_ERROR"
    assert (again["text"], anew["text"]) == ("ccc: 3 pieces", "dddd: 4 pieces")
    # What meets the server's end is not sent again: it may have been heard.
    assert met["text"] == "dddd: 4 pieces" or met["error"]["code"] == "INTERNAL_ERROR", met

    assert any("broken cannot be used" in note for note in notes), notes
    assert not [event for event in played.events if isinstance(event, BoxReplaced)]
    session_dir = Path(played.result.transcript).parent
    assert not (session_dir / "mcp.json").exists()
    kept = "".join(path.read_text(errors="replace") for path in session_dir.rglob("*.json*"))
    assert "open-sesame" not in kept
    assert TOKEN not in kept


async def test_a_session_that_only_reads_has_what_a_trusted_server_says_reads(
    stage: Any, web_server: str, tmp_path: Path
) -> None:
    web = {"url": web_server, "headers": {"X-Key": TOKEN}, "allow_private": True, "start_s": 120}
    box = box_with(tmp_path / "mcp.json", {"web": {**web, "trust_read_only": True}, "other": web})
    script = in_turn((call("web__count", shelf="a"), call("other__count", shelf="a")))
    played = await stage.play(script, box=box, is_read_only=True)
    shown = [name for name in tools_of(played.requests[0]) if "__" in name]
    assert shown == ["web__count"]
    counted, refused = contents(played)
    assert counted["text"] == "a: 1 pieces"
    assert refused["error"]["code"] == "UNKNOWN_TOOL"
    assert os.environ.get("TOKEN_OF_WEB") is None
