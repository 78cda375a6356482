"""The scripted endpoint, asked by a plain HTTP client."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn, load_script, step_of
from coordinator.errors import ConfigError

USER = {"role": "user", "content": "go"}
SCRIPT = [Turn("first", (ScriptedCall("Read", {"path": "x"}),)), Turn("second")]


def post(base_url: str, body: Any, path: str = "/chat/completions") -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("POST", address.path + path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def ask(base_url: str, *messages: dict[str, Any], **fields: Any) -> Any:
    status, _, content = post(base_url, {"model": "m", "messages": list(messages), **fields})
    assert status == 200, content
    return json.loads(content)


def after_one_step(reply: dict[str, Any]) -> list[dict[str, Any]]:
    message = reply["choices"][0]["message"]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message.get("tool_calls", ())]
    return [USER, message, *answers]


def test_what_it_says_follows_from_the_messages_alone() -> None:
    with ScriptedEndpoint(SCRIPT) as endpoint:
        for _ in range(2):
            first = ask(endpoint.base_url, USER)
            second = ask(endpoint.base_url, *after_one_step(first))
            assert first["choices"][0]["finish_reason"] == "tool_calls"
            assert second["choices"][0]["message"] == {"role": "assistant", "content": "second"}
        third = ask(endpoint.base_url, *after_one_step(first), second["choices"][0]["message"], USER)
        assert third["choices"][0]["message"]["content"] == "first"
        ids = [reply["choices"][0]["message"]["tool_calls"][0]["id"] for reply in (first, third)]
        assert len(set(ids)) == 2


def test_a_script_may_be_a_function_of_the_messages() -> None:
    with ScriptedEndpoint(lambda messages: Turn(f"{len(messages)} messages")) as endpoint:
        assert ask(endpoint.base_url, USER)["choices"][0]["message"]["content"] == "1 messages"


def test_a_script_that_is_over_says_so() -> None:
    with ScriptedEndpoint([]) as endpoint:
        status, _, content = post(endpoint.base_url, {"model": "m", "messages": [USER]})
    assert status == 400
    assert b"no turn 0" in content


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        [],
        {"messages": [USER]},
        {"model": "m"},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
        {"model": "m", "messages": [USER, {"role": "assistant", "content": "x"}]},
        {"model": "m", "messages": [USER], "tools": []},
        {"model": "m", "messages": [USER], "tools": [{"name": "Read"}]},
    ],
)
def test_it_refuses_what_a_strict_endpoint_refuses(body: Any) -> None:
    with ScriptedEndpoint(SCRIPT) as endpoint:
        status, _, content = post(endpoint.base_url, body)
    assert status == 400
    assert json.loads(content)["error"]["type"] == "invalid_request_error"


def test_other_paths_are_not_found() -> None:
    with ScriptedEndpoint(SCRIPT) as endpoint:
        assert post(endpoint.base_url, {}, "/responses")[0] == 404


def test_a_stream_is_cut_the_way_openai_cuts_it() -> None:
    with ScriptedEndpoint([Turn("abcd", (ScriptedCall("Read", '{"a": 1}', id="x"),), chunk_chars=2)]) as endpoint:
        body = {"model": "m", "messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
        _, headers, content = post(endpoint.base_url, body)
    assert headers["content-type"].startswith("text/event-stream")
    *events, done, rest = content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "ab", "cd"]
    fragments = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [fragment.get("id") for fragment in fragments] == ["x", None, None, None, None]
    assert "".join(fragment["function"]["arguments"] for fragment in fragments) == '{"a": 1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] > 0


def test_failing_turns_pass_once_each() -> None:
    turn = Turn("ok", first=(Turn(status=429, retry_after_s=2), Turn(status=500, error="down")))
    with ScriptedEndpoint([turn]) as endpoint:
        body = {"model": "m", "messages": [USER]}
        statuses = [post(endpoint.base_url, body)[0] for _ in range(4)]
        assert statuses == [429, 500, 200, 200]
        assert len(endpoint.requests) == 4


def test_retry_after_is_a_header() -> None:
    with ScriptedEndpoint([Turn(status=429, retry_after_s=2)]) as endpoint:
        _, headers, _ = post(endpoint.base_url, {"model": "m", "messages": [USER]})
    assert headers["retry-after"] == "2"


def test_closing_ends_requests_that_are_under_way() -> None:
    arrived = threading.Event()

    def script(_: list[dict[str, Any]]) -> Turn:
        arrived.set()
        return Turn("late", delay_s=60)

    def wait_for_it(base_url: str) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            post(base_url, {"model": "m", "messages": [USER]})

    endpoint = ScriptedEndpoint(script)
    asking = threading.Thread(target=wait_for_it, args=(endpoint.base_url,))
    asking.start()
    assert arrived.wait(60)
    endpoint.close()
    asking.join(60)
    assert not asking.is_alive()


def test_steps_are_counted_from_the_last_user_message() -> None:
    assistant = {"role": "assistant", "content": "x"}
    assert [step_of(messages) for messages in ([USER], [USER, assistant, assistant], [USER, assistant, USER])] == [
        0,
        2,
        0,
    ]


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(
        json.dumps([{"text": "a", "calls": [{"name": "Read", "arguments": {"path": "x"}}]}, {"status": 500}])
    )
    assert load_script(path) == [Turn("a", (ScriptedCall("Read", {"path": "x"}),)), Turn(status=500)]


@pytest.mark.parametrize("content", ["{", '{"text": "a"}', '[{"texts": "a"}]', "[1]"])
def test_a_file_that_holds_no_script_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="does not hold a script"):
        load_script(path)


def test_it_is_also_a_program(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"text": "hello"}]))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "coordinator.endpoint.scripted", "--script", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert ask(base_url, USER)["choices"][0]["message"]["content"] == "hello"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
