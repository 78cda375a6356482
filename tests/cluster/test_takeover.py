"""Coordinators that are killed or stand still while a call of theirs runs, with a real node and real boxes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.session.call_events import CallFinished
from coordinator.session.history import validate
from coordinator.session.reading import read_session
from coordinator.session.rebuild import rebuild
from coordinator.session.session_events import SessionEnded, SessionResumed
from tests.cluster.conftest import AGENT_UID
from tests.conftest import Until

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
SANDHOG = [sys.executable, "-c", "from coordinator.start import main; main()"]
LOG = "touch begun; until [ -e go ]; do sleep 0.05; done; echo x >> log"
AGAIN = "touch again; until [ -e on ]; do sleep 0.05; done; echo y >> log"
WAIT_S = 100.0
DEBUG = "SANDHOG_TEST_DEBUG" in os.environ


@dataclass
class Process:
    """A process whose lines are kept as they come."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def result(self, session: str) -> dict[str, Any] | None:
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return next((one for one in found if one["session_id"] == session), None)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def started(*argv: str, typed: str = "", **variables: str) -> Iterator[Process]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **variables}
    process = Process(
        subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if DEBUG else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    )
    assert process.process.stdin is not None
    with process.process.stdin as stdin:
        stdin.write(typed)
    try:
        yield process
    finally:
        process.end()


def project(tmp_path: Path, name: str) -> Path:
    """A directory whose commands run as a user of their own; what they wait for is put there by the test."""
    directory = tmp_path / name
    directory.mkdir()
    if os.geteuid() == 0:
        os.chown(directory, AGENT_UID, AGENT_UID)
    return directory


def by_replies(messages: list[dict[str, Any]]) -> Turn:
    turns = [
        Turn(calls=(ScriptedCall("Bash", {"command": LOG}),)),
        Turn(calls=(ScriptedCall("Bash", {"command": AGAIN}),)),
    ]
    replies = sum(message["role"] == "assistant" for message in messages)
    return turns[replies] if replies < len(turns) else Turn("done")


def whole(session_dir: Path) -> list[CallFinished]:
    """The answers of a session that went on once and ended once; its conversation is valid."""
    reading = read_session(session_dir)
    events = [entry.event for entry in reading.entries]
    assert sum(isinstance(event, SessionResumed) for event in events) == 1
    assert isinstance(events[-1], SessionEnded)
    validate(rebuild(reading.entries).history.messages)
    answered = [event for event in events if isinstance(event, CallFinished)]
    assert [(event.step, event.index) for event in answered] == [(1, 0), (2, 0)]
    return answered


@pytest.mark.timeout(300)
def test_a_session_outlives_its_coordinator(embedded: Embedded, state_dir: Path, tmp_path: Path, until: Until) -> None:
    in_call, between, still = (project(tmp_path, name) for name in ("in_call", "between", "still"))
    program = [sys.executable, str(ROOT / "tests/cluster/coordinator_process.py")]
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(ScriptedEndpoint(by_replies))
        around = (embedded.redis_url, str(state_dir), endpoint.base_url)
        adopter = stack.enter_context(started(*program, "adopt", *around))
        owners = {
            place: stack.enter_context(started(*program, "run", *around, str(place)))
            for place in (in_call, between, still)
        }
        until(lambda: "watching\n" in adopter.lines, "the adopter runs", WAIT_S)
        for place in owners:
            until((place / "begun").exists, f"the call of {place.name} runs", WAIT_S)
        sessions = {place: owner.lines[0].split()[1] for place, owner in owners.items()}

        owners[in_call].send(signal.SIGKILL)
        owners[between].send(signal.SIGSTOP)
        owners[still].send(signal.SIGSTOP)
        (between / "go").touch()
        until((between / "log").exists, "the call between was done", WAIT_S)
        owners[between].send(signal.SIGKILL)

        until(lambda: len([line for line in adopter.lines if line.startswith("session ")]) == 3, "all adopted", WAIT_S)
        (in_call / "go").touch()
        (still / "go").touch()
        for place in owners:
            until((place / "again").exists, f"{place.name} goes on", WAIT_S)

        # The one that stood still wakes up while another has its session, box and call.
        seen = read_session(state_dir / "sessions" / sessions[still]).entries
        owners[still].send(signal.SIGCONT)
        until(lambda: owners[still].process.poll() is not None, "the old owner gives up", WAIT_S)
        lost = owners[still].result(sessions[still])
        assert lost is not None
        assert (lost["status"], lost["stop_reason"][:10]) == ("failed", "taken over")
        assert read_session(state_dir / "sessions" / sessions[still]).entries == seen

        for place in owners:
            (place / "on").touch()
        for place, session in sessions.items():
            until(lambda: adopter.result(session) is not None, f"{place.name} ends", WAIT_S)  # noqa: B023
            result = adopter.result(session)
            assert result is not None
            assert (result["status"], result["text"]) == ("completed", "done"), result
            assert (place / "log").read_text() == "x\ny\n", place.name
            first, second = whole(state_dir / "sessions" / session)
            assert (first.status, second.status) == ("success", "success"), place.name


@pytest.mark.timeout(300)
def test_a_command_that_was_killed_is_resumed(
    embedded: Embedded, state_dir: Path, tmp_path: Path, until: Until
) -> None:
    clustered, alone = project(tmp_path, "clustered"), project(tmp_path, "alone")
    own_state = state_dir / "alone"
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(ScriptedEndpoint(by_replies))
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "SANDHOG_MODEL": "scripted"}
        where = {
            clustered: {**variables, "SANDHOG_STATE_DIR": str(state_dir), "SANDHOG_REDIS_URL": embedded.redis_url},
            alone: {**variables, "SANDHOG_STATE_DIR": str(own_state), "SANDHOG_PROOFS_DIR": proofs()},
        }
        flags = ("--bind", "--policy", "boxed", "--json")
        runs = {
            place: stack.enter_context(started(*SANDHOG, "run", "go", "--workspace", str(place), *flags, **names))
            for place, names in where.items()
        }
        for place, run in runs.items():
            until((place / "begun").exists, f"the call of {place.name} runs", WAIT_S)
            run.send(signal.SIGKILL)
            run.process.wait()
            for name in ("go", "on"):
                (place / name).touch()
        until((clustered / "log").exists, "the call goes on without its coordinator", WAIT_S)

        again = {
            place: stack.enter_context(started(*SANDHOG, "resume", "last", "--json", **names))
            for place, names in where.items()
        }
        for place, resumed in again.items():
            until(lambda: resumed.process.poll() is not None, f"{place.name} ends", WAIT_S)  # noqa: B023
            resumed.end()
            (result,) = [json.loads(line) for line in resumed.lines]
            assert (result["status"], result["text"], result["calls"]) == ("completed", "done", 2), result
            first, second = whole(Path(result["transcript"]).parent)
            assert second.status == "success"
            assert (place / "log").read_text().count("y") == 1
            if place is clustered:
                assert (first.status, (place / "log").read_text()) == ("success", "x\ny\n")
            else:
                # Its box has ended with it: whether the command came to its end nobody knows.
                assert first.error_code == "OUTCOME_UNKNOWN"
                assert (place / "log").read_text().count("x") <= 1
            kept = Path(where[place]["SANDHOG_STATE_DIR"], "audit.jsonl").read_text().splitlines()
            acts = [json.loads(line) for line in kept if result["session_id"] in line]
            assert [act["action"] for act in acts] == ["run", "resume"]


def test_a_chat_takes_its_messages_from_a_pipe(
    embedded: Embedded, state_dir: Path, tmp_path: Path, until: Until
) -> None:
    place = project(tmp_path, "place")

    def script(messages: list[dict[str, Any]]) -> Turn:
        said = [message["content"] for message in messages if message["role"] == "user"]
        if messages[-1]["role"] == "user":
            return Turn(calls=(ScriptedCall("Bash", {"command": "cd /tmp; cat >> /workspace/said <<< x; pwd"}),))
        return Turn(f"answer {len(said)}")

    with ScriptedEndpoint(script) as endpoint:
        names = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "SANDHOG_MODEL": "scripted",
            "SANDHOG_STATE_DIR": str(state_dir),
            "SANDHOG_REDIS_URL": embedded.redis_url,
        }
        flags = ("--bind", "--policy", "boxed", "--workspace", str(place))
        with started(*SANDHOG, "chat", *flags, typed="one\ntwo \\\nlines\n\n", **names) as chat:
            until(lambda: chat.process.poll() is not None, "the chat ends", WAIT_S)
        with started(*SANDHOG, "show", "last", **names) as show:
            until(lambda: show.process.poll() is not None, "it is shown", WAIT_S)
        assert chat.process.returncode == 0
        text = "".join(show.lines)
        for words in ("› one\n", "answer 1\n", "› two \n  lines\n", "answer 2\n", "completed · 4 steps · 2 calls"):
            assert words in text, text
        assert (place / "said").read_text() == "x\nx\n"


def proofs() -> str:
    return os.environ["SANDHOG_PROOFS_DIR"]
