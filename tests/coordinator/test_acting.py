"""What somebody does at a terminal stands in the audit log: who, when, what. Runs and answers of whole sessions are in
`tests/cluster`."""

import asyncio
import io
import json
import os
import pwd
import select
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from coordinator.cli import cli
from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.store import connect
from coordinator.commands.acting import actor
from coordinator.commands.terminal import TerminalApprover
from coordinator.commands.typed_lines import TypedLines
from coordinator.errors import TranscriptError
from coordinator.session.approvals import Decided
from coordinator.session.events import Event
from coordinator.session.session_events import SessionEnded
from coordinator.session.transcript import Transcript
from tests.conftest import Until
from tests.coordinator.beginnings import started
from worker.contract.approvals import ApprovalRequest

SESSION = "20300131-120000-1a2b3c4d"
REQUEST = ApprovalRequest(session=SESSION, step=3, index=0, tool="Bash", digest="d", text="make", reason="why")
STARTED = started(SESSION)
ENDED = SessionEnded(status="completed", stop_reason="done", text="", steps=1, calls=0)


@pytest.fixture
def sandhog(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("SANDHOG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SANDHOG_REDIS_URL", redis_url)
    return lambda *arguments: CliRunner().invoke(cli, arguments)


def lines(state_dir: Path) -> list[dict[str, Any]]:
    path = state_dir / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def actions(state_dir: Path) -> list[tuple[str, str, str]]:
    return [(line["action"], line["session"], line["detail"]) for line in lines(state_dir)]


def on_redis(url: str, do: Callable[[Redis], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        client = connect(url)
        try:
            return await do(client)
        finally:
            await client.aclose()

    return asyncio.run(work())


def keep(state_dir: Path, *events: Event) -> Path:
    directory = state_dir / "sessions" / SESSION
    with Transcript.create(directory, SESSION) as transcript:
        for event in events:
            transcript(event)
    return directory


def test_a_line_says_who_when_and_from_where(tmp_path: Path, sandhog: Callable[..., Result]) -> None:
    assert sandhog("token", "create", "team-a").exit_code == 0
    (line,) = lines(tmp_path)
    assert line["actor"].endswith(f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}")
    assert line["actor"] == actor()
    assert (line["via"], line["address"]) == ("terminal", "")
    assert datetime.now(UTC) - datetime.fromisoformat(line["at"]) < timedelta(minutes=10)


def test_tokens_and_clearing_up(tmp_path: Path, sandhog: Callable[..., Result]) -> None:
    token = sandhog("token", "create", "team-a", "--operator").output.strip()
    for arguments in (["token", "list"], ["token", "revoke", "team-a"], ["gc"]):
        done = sandhog(*arguments)
        assert done.exit_code == 0, done.output
    assert actions(tmp_path) == [
        ("token_create", "", "team-a, an operator"),
        ("token_revoke", "", "team-a"),
        ("gc", "", ""),
    ]
    assert token not in (tmp_path / "audit.jsonl").read_text()


def test_draining_and_what_only_looks(tmp_path: Path, sandhog: Callable[..., Result]) -> None:
    # Also of a node that is not there: what was tried is kept, and before it is tried.
    assert sandhog("drain", "node-7").exit_code != 0
    assert sandhog("drain", "node-7", "--undo").exit_code != 0
    for looking in (["ps"], ["nodes"], ["top", "--once"], ["breakers"], ["approve"]):
        assert sandhog(*looking).exit_code == 0
    assert actions(tmp_path) == [("drain", "", "node-7"), ("undrain", "", "node-7")]


def test_cancelling(tmp_path: Path, sandhog: Callable[..., Result]) -> None:
    keep(tmp_path, STARTED)
    done = sandhog("cancel", SESSION[:12])
    assert "is run by no process" in done.output
    one = sandhog("cancel", SESSION, "--call", "3.0")
    assert (one.exit_code, one.output) == (1, f"Session {SESSION} has no call 3.0.\n")
    assert sandhog("cancel", SESSION, "--step", "3").exit_code == 1
    assert sandhog("cancel", SESSION, "--call", "three").exit_code == 2
    assert sandhog("cancel", SESSION, "--call", "3.0", "--step", "3").exit_code == 2
    assert actions(tmp_path) == [
        ("cancel", SESSION, ""),
        ("cancel", SESSION, "call 3.0"),
        ("cancel", SESSION, "step 3"),
    ]


def test_answers(tmp_path: Path, redis_url: str, sandhog: Callable[..., Result]) -> None:
    on_redis(redis_url, lambda client: Requests(client).ask(REQUEST, 60))
    assert sandhog("approve", SESSION, "3.0", "--allow", "--always").exit_code == 0
    assert sandhog("approve", SESSION, "3.0", "--deny").exit_code != 0
    assert actions(tmp_path) == [
        ("allow", SESSION, "call 3.0, for the session"),
        ("deny", SESSION, "call 3.0"),
    ]
    given = on_redis(redis_url, lambda client: Requests(client).answer_of(SESSION, "3.0"))
    assert given.by == f"{actor()} by sandhog approve"


def test_what_cannot_be_kept_is_not_done(tmp_path: Path, redis_url: str, sandhog: Callable[..., Result]) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    on_redis(redis_url, lambda client: Requests(client).ask(REQUEST, 60))
    done = sandhog("approve", SESSION, "3.0", "--allow")
    assert "audit.jsonl cannot be written" in str(done.exception)
    assert on_redis(redis_url, lambda client: Requests(client).answer_of(SESSION, "3.0")) is None


def test_an_answer_of_somebody_who_watches(
    tmp_path: Path, redis_url: str, sandhog: Callable[..., Result], until: Until
) -> None:
    on_redis(redis_url, lambda client: Requests(client).ask(REQUEST, 60))
    with Transcript.create(tmp_path / "sessions" / SESSION, SESSION) as transcript:
        transcript(STARTED)
        with at_a_terminal("attach", SESSION) as (process, terminal):
            read_until(terminal, b"allow?")
            os.write(terminal, b"n not today\n")
            until(lambda: on_redis(redis_url, lambda client: Requests(client).answer_of(SESSION, "3.0")), "an answer")
            transcript(ENDED)
            assert process.wait(60) == 0
    assert actions(tmp_path) == [("deny", SESSION, "call 3.0")]


async def test_an_answer_that_cannot_be_kept_is_a_no() -> None:
    def refuse(request: ApprovalRequest, decided: Decided) -> None:
        raise TranscriptError("the audit log is full")

    reading, writing = os.pipe()
    os.write(writing, b"y\n")
    os.close(writing)
    with os.fdopen(reading) as answers:
        approver = TerminalApprover(Screen(), asyncio.Event(), TypedLines(answers), io.StringIO(), refuse)
        decided = await approver.ask(REQUEST)
    assert decided == Decided(False, by="the audit log", note="the audit log is full")


class Screen:
    """Draws nothing."""

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def at_a_terminal(*arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A `sandhog` process and the other side of its terminal."""
    master, slave = os.openpty()
    command = [sys.executable, "-c", "from coordinator.start import main; main()", *arguments]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        try:
            yield process, master
        finally:
            process.kill()
            os.close(master)


def read_until(terminal: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 4096)
