"""`sandhog mcp` with the official SDK's client at the far end, over real stdio and HTTP."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from coordinator.mcp.server import REQUEST_KEY
from tests.cluster.commands import SANDHOG, leftovers

pytestmark = pytest.mark.docker

START_S = 120
"""For the cluster, the image's proofs and the box, on a machine that has much else to do."""


def variables(state_dir: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(state_dir),
        "SANDHOG_STATE_DIR": str(state_dir),
        "SANDHOG_PROOFS_DIR": os.environ["SANDHOG_PROOFS_DIR"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def server(project: Path, state_dir: Path, *more: str) -> StdioServerParameters:
    arguments = [*SANDHOG[1:], "mcp", "--workspace", str(project), *more]
    return StdioServerParameters(command=sys.executable, args=arguments, env=variables(state_dir))


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert block.type == "text"
    return block.text


async def done(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return text_of(result)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return text_of(result)


async def test_a_client_works_in_a_box_of_its_own(project: Path, state_dir: Path) -> None:
    async with asyncio.timeout(START_S), Client(server(project, state_dir)) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(listed) == ["Bash", "BashOutput", "Edit", "Glob", "Grep", "KillBash", "Read", "Write"]
        assert listed["Read"].input_schema["properties"].keys() == {"path", "offset", "limit"}
        assert listed["Read"].annotations is not None
        assert listed["Read"].annotations.read_only_hint
        assert "/workspace" in (client.instructions or "")

        assert "alpha" in await done(client, "Read", path="a.txt")
        assert "CONFLICT" in await refused(client, "Edit", path="b.txt", old_string="gamma", new_string="1")
        await done(client, "Edit", path="a.txt", old_string="alpha", new_string="first")
        await done(client, "Write", path="new.txt", content="made\n")
        await done(client, "Bash", command="mkdir -p deep && cd deep")
        assert "/workspace/deep" in await done(client, "Bash", command="pwd; ls -d /work /root/.ssh 2>/dev/null")
        assert "INVALID_PARAM" in await refused(client, "Read", file="a.txt")
        assert "UNKNOWN_TOOL" in await refused(client, "Task", prompt="x")

        # Calls that come at once run at once where they only read, and all have their own answers.
        words = {"first": "a.txt", "gamma": "b.txt", "made": "new.txt"}
        asked = [done(client, "Grep", pattern=word, path="/workspace") for word in words]
        for answer, name in zip(await asyncio.gather(*asked), words.values(), strict=True):
            assert name in answer

        await _a_long_command_tells_of_itself_and_is_cancelled_alone(client)
        await _a_repeated_request_runs_once(client)
    patch = next((state_dir / "sessions").glob("*/patch.diff")).read_text()
    assert "+first" in patch
    assert (project / "a.txt").read_text() == "alpha\nbeta\n"
    (line,) = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    assert (line["action"], line["detail"]) == ("run", f"for an MCP client, on {project}")
    kept = next((state_dir / "sessions").glob("*/*.jsonl")).read_text()
    assert '"type":"session_ended"' in kept
    assert leftovers(state_dir) == []


async def _a_long_command_tells_of_itself_and_is_cancelled_alone(client: Client) -> None:
    told = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        assert message is not None
        told.set()

    long = asyncio.create_task(
        client.call_tool("Bash", {"command": "touch begun; sleep 300"}, progress_callback=on_progress)
    )
    await told.wait()
    reading = asyncio.create_task(done(client, "Read", path="/workspace/new.txt"))
    assert "made" in await reading
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    # It held the turn of commands: this one runs once the box is rid of it.
    assert "none left" in await done(client, "Bash", command="pgrep sleep || echo none left")


async def _a_repeated_request_runs_once(client: Client) -> None:
    key = {REQUEST_KEY: "first"}
    arguments = {"command": "echo once >> /tmp/log; wc -l < /tmp/log"}
    answers = await asyncio.gather(*[client.call_tool("Bash", arguments, meta=key) for _ in range(3)])  # type: ignore[arg-type]
    assert {text_of(answer).strip() for answer in answers} == {text_of(answers[0]).strip()}
    assert "1" in await done(client, "Bash", command="wc -l < /tmp/log")
    with pytest.raises(MCPError, match="another call"):
        await client.call_tool("Bash", {"command": "echo two"}, meta=key)  # type: ignore[arg-type]


async def test_over_http_who_has_the_token_is_the_client(project: Path, state_dir: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *SANDHOG, "mcp", "--workspace", str(project), "--bind", "--policy", "guarded", "--http", "0",
        env=variables(state_dir), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S):
            line = (await process.stderr.readline()).decode()
            found = re.search(
                r"at (http://127\.0\.0\.1:\d+/mcp) with the header `(Authorization): (Bearer [^`]+)`", line
            )
            assert found, line
            url, header, value = found.groups()
            async with httpx2.AsyncClient(trust_env=False) as stranger:
                assert (await stranger.post(url, json={})).status_code == 401
                wrong = await stranger.post(url, json={}, headers={header: "Bearer x"})
                assert wrong.status_code == 401
            async with (
                httpx2.AsyncClient(headers={header: value}, trust_env=False, timeout=START_S) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                assert "alpha" in await done(client, "Read", path="a.txt")
                # Nobody is there who could say yes.
                assert "PERMISSION_DENIED" in await refused(client, "Bash", command="touch new.txt")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not (project / "new.txt").exists()
    assert leftovers(state_dir) == []
