"""The settings file of MCP servers: the usual form, and what is wrong with another."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import ConfigError
from coordinator.session.box_options import BoxOptions
from coordinator.session.mcp_settings import NO_MCP, McpOptions, read_mcp_config
from worker.contract.mcp import MCP_FILE, McpServers

SECRET = "s3cret-s3cret"


def read(tmp_path: Path, content: Any, **environment: str) -> McpOptions:
    path = tmp_path / "servers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_mcp_config(path, environment)


def test_servers_are_read_with_the_variables_of_the_environment(tmp_path: Path) -> None:
    servers = {
        "tests": {"command": "python3", "args": ["${DIR:-/workspace}/s.py"], "env": {"KEY": "${KEY}"}},
        "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
        "off": {"command": "x", "disabled": True},
    }
    options = read(tmp_path, {"mcpServers": servers}, KEY=SECRET)
    tests, web = options.servers.servers
    assert (tests.command, tests.args, tests.env, tests.where) == (
        "python3",
        ("/workspace/s.py",),
        {"KEY": SECRET},
        "box",
    )
    assert web.headers == {"Authorization": f"Bearer {SECRET}"}
    assert (tests.is_outside, web.is_outside) == (False, True)
    assert options.secrets == (SECRET, SECRET)
    assert SECRET not in repr(options)
    assert SECRET not in repr(tests)


def test_they_lie_in_the_sessions_directory_for_its_owner_and_leave_with_it(tmp_path: Path) -> None:
    box = BoxOptions().with_mcp(read(tmp_path, {"mcpServers": {"a": {"command": "x", "env": {"K": "${K}"}}}}, K=SECRET))
    assert box.extras.mcp
    assert SECRET not in box.extras.model_dump_json()
    assert box.secrets == (SECRET,)
    box.lay_out(tmp_path)
    path = tmp_path / MCP_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert McpServers.model_validate_json(path.read_bytes()) == box.mcp.servers
    box.forget(tmp_path)
    assert not path.exists()
    assert (BoxOptions().extras.mcp, NO_MCP.digest, read_mcp_config(None, {})) == ("", "", NO_MCP)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ([], "mcpServers"),
        ({"servers": {}}, "mcpServers"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://y"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"url": "ftp://y"}}}, "http://"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://y"}}}, "key type"),
        ({"mcpServers": {"a": {"type": "stdio", "url": "http://y"}}}, "does not go with"),
        (
            {"mcpServers": {"a": {"command": "x", "cwd": "/"}}},
            "key cwd: there is no such key; allowed are type,",
        ),
        ({"mcpServers": {"a": {"command": "x", "timeout_s": 0}}}, "key timeout_s"),
        ({"mcpServers": {"a b": {"command": "x"}}}, "a name is"),
        ({"mcpServers": {"a": {"command": "${NOT_SET}"}}}, "the variable NOT_SET is not set here"),
        ({"mcpServers": {f"s{number}": {"command": "x"} for number in range(33)}}, "at most 32"),
    ],
)
def test_another_form_is_one_line_that_says_what_to_change(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--mcp-config ")
    assert "\n" not in str(caught.value)


def test_no_value_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {"mcpServers": {"a": {"command": "x", "env": {"K": "${K}"}, "timeout_s": SECRET}}}, K=SECRET)
    assert SECRET not in str(caught.value)
