"""The model client against a server that others wrote: LLMock, installed from the package index.

It answers as OpenAI does, breaks streams as endpoints break them, and judges its clients. It stands beside the virtual
environment, not in it: its dependencies would change how our own server runs.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from coordinator.endpoint.model import ModelClient, ModelSettings, Retry
from coordinator.endpoint.parameters import ModelParameters
from coordinator.endpoint.reply import ModelReply
from coordinator.errors import ContextTooLong, ModelRefused
from coordinator.session.history import History
from tests.conftest import without_server

PACKAGES = ("llmock==0.2.2", "httpx==0.28.1", "httpcore==1.0.9", "PyYAML==6.0.4")
"""What it needs beyond our own packages."""
SERVE = "import sys; from llmock.cli import app; sys.argv = ['llmock', *sys.argv[1:]]; app()"
INSTALL_S, START_S = 100.0, 60.0

pytestmark = pytest.mark.timeout(240)
"""The first test waits for both."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in ("Read", "Grep")
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running LLMock's; its window is 2,000 tokens."""
    site = tmp_path_factory.mktemp("llmock")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), *PACKAGES]
    try:
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        without_server("LLMock cannot be installed: the package index does not answer")
    arguments = ["serve", "--port", "0", "--log-level", "info", "--context-window", "2000"]
    log = site / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"},
        )
    try:
        yield _address(server, log)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return where it listens, once it says so."""
    deadline = time.monotonic() + START_S
    mark = "Uvicorn running on "
    while time.monotonic() < deadline and server.poll() is None:
        text = log.read_text()
        if mark in text:
            return text.partition(mark)[2].split()[0] + "/v1"
        time.sleep(0.1)
    pytest.fail(f"LLMock did not start: {log.read_text()[-1000:]}")


def tell(base_url: str, *behaviors: dict[str, Any]) -> None:
    """Say what it does with the next requests."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request("POST", "/_llmock/scenario", json.dumps({"behaviors": behaviors}))
        response = connection.getresponse()
        assert response.status == 201, response.read()
    finally:
        connection.close()


def client_of(base_url: str, **fields: Any) -> ModelClient:
    async def at_once(seconds: float) -> None:
        """Wait for nothing."""

    return ModelClient(ModelSettings("gpt-4o", base_url=base_url, api_key="key", **fields), sleep=at_once)


async def ask(
    client: ModelClient, messages: list[dict[str, Any]], **fields: Any
) -> tuple[ModelReply, str, list[Retry]]:
    """One reply, what was shown of it, and the tries before it."""
    shown: list[str] = []
    retries: list[Retry] = []
    reply = await client.ask(messages, TOOLS, shown.append, on_retry=retries.append, **fields)
    return reply, "".join(shown), retries


USER: list[dict[str, Any]] = [{"role": "user", "content": "Read the file notes.txt"}]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_with_calls_and_answers_goes_through(base_url: str, stream: bool) -> None:
    client = client_of(base_url, stream=stream)
    history = History("You read files.")
    history.add_user("Read the file notes.txt, then say what it says")
    parameters = ModelParameters(temperature=0, max_tokens=200, first_tool_choice="Read", parallel_tool_calls=False)
    try:
        first, _, _ = await ask(client, history.messages, parameters=parameters, is_first=True)
        assert [call.name for call in first.calls] == ["Read"]
        assert isinstance(json.loads(str(first.calls[0].arguments))["path"], str)
        assert (first.finish_reason, first.usage is not None) == ("tool_calls", True)
        history.add_reply(first)
        history.add_answers(['{"status": "success", "text": "buy milk"}'])
        last, shown, _ = await ask(client, history.messages, parameters=parameters)
    finally:
        await client.close()
    assert last.calls == ()
    assert last.text == shown != ""
    assert last.finish_reason == "stop"
    assert last.raw["model"] == "gpt-4o"


@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
async def test_a_broken_stream_is_asked_for_again_and_never_taken_for_whole(base_url: str, kind: str) -> None:
    reply = {"type": "reply", "tool_calls": [{"name": "Read", "arguments": {"path": "a.txt"}}]}
    tell(base_url, {"type": "stream_fault", "kind": kind, "after_chunks": 2}, reply, reply)
    client = client_of(base_url)
    try:
        whole, _, retries = await ask(client, USER)
    finally:
        await client.close()
    assert len(retries) == 1
    assert [(call.name, json.loads(str(call.arguments))) for call in whole.calls] == [("Read", {"path": "a.txt"})]


async def test_its_rate_limits_and_faults_pass(base_url: str) -> None:
    tell(
        base_url,
        {"type": "fail", "status": 429, "retry_after": 3},
        {"type": "fail", "status": 503},
        {"type": "reply", "text": "here"},
    )
    client = client_of(base_url)
    try:
        reply, _, retries = await ask(client, USER)
    finally:
        await client.close()
    assert reply.text == "here"
    assert [retry.error.status for retry in retries] == [429, 503]
    assert retries[0].wait_s >= 3


async def test_its_refusals_and_its_window_have_errors_of_their_own(base_url: str) -> None:
    client = client_of(base_url)
    try:
        tell(base_url, {"type": "fail", "status": 401})
        with pytest.raises(ModelRefused):
            await ask(client, USER)
        with pytest.raises(ContextTooLong) as caught:
            await ask(client, [{"role": "user", "content": "word " * 20_000}])
    finally:
        await client.close()
    assert caught.value.limit_tokens == 2000
