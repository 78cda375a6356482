import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.commands.serving import Serving, run_server
from coordinator.errors import ConfigError
from coordinator.service.line import Line
from coordinator.service.tokens import Tokens


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def environment(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("SANDHOG_STATE_DIR", str(state_dir))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("SANDHOG_MODEL", "any")
    monkeypatch.delenv("SANDHOG_API_TOKEN", raising=False)
    return monkeypatch


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_a_token_nobody_else_can_reach_the_server(environment: pytest.MonkeyPatch, host: str) -> None:
    with pytest.raises(ConfigError, match="sandhog token create"):
        run_server(Serving(host, 0))


def test_a_port_that_is_taken_is_said(
    environment: pytest.MonkeyPatch, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}"):
            run_server(Serving("127.0.0.1", port))
    token = capsys.readouterr().err.split()[-1]
    principal = Tokens(state_dir).authenticate(token)
    assert principal is not None, "on loopback one is made and shown once"
    assert principal.name == "local"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDHOG_API_TOKEN", "short"),
        ("SANDHOG_ROOTS", "not json"),
        ("SANDHOG_ROOTS", '{"a": "relative"}'),
        ("SANDHOG_ROOTS", '{"a/b": "/srv"}'),
        ("SANDHOG_MAX_SESSIONS", "0"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        run_server(Serving("127.0.0.1", 0))
    assert name.removeprefix("SANDHOG_").lower() in str(refused.value).lower()
    assert "short" not in str(refused.value)


def test_the_line_is_fair_between_principals_and_in_order_within_each() -> None:
    line = Line(most=3)
    for number in range(4):
        line.join(f"a{number}", "a")
    line.join("b0", "b")
    assert list(line.next(lambda principal, running: True)) == ["a0", "b0", "a1"]
    assert line.position("a3") == 2
    assert list(line.next(lambda principal, running: True)) == []
    line.ended("a0")
    assert list(line.next(lambda principal, running: running < 1)) == [], "a has one running"
    line.ended("a1")
    assert list(line.next(lambda principal, running: running < 1)) == ["a2"]
    assert line.leave("a3")
    assert not line.leave("a3")
    assert (line.running("a"), line.waiting("a"), line.room) == (1, 0, 1)
