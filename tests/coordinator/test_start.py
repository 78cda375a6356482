"""What a command has imported when it has done its work: what it does not need would slow its start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.session.session_events import SessionEnded
from coordinator.session.transcript import Transcript
from tests.coordinator.beginnings import started

ROOT = Path(__file__).parents[2]
SESSION = "20300131-120000-1a2b3c4d"
ENDPOINT = {"openai", "httpx2", "tiktoken"}
SERVER = {"fastapi", "starlette", "uvicorn", "jinja2", "mcp", "prometheus_client"}
QUEUE = {"celery", "kombu"}
NODE = {"docker", "tree_sitter", "docstring_parser"}
TRACES = {"opentelemetry.sdk.metrics", "opentelemetry.sdk.trace"}
NEVER = ENDPOINT | SERVER | QUEUE | NODE | TRACES
"""Of no use to whoever looks at what is on the volume or in Redis."""

LOOK = """
import sys
from coordinator.start import main
sys.argv[0] = "sandhog"
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A volume with one session that has ended."""
    directory = tmp_path / "sessions" / SESSION
    with Transcript.create(directory, SESSION) as transcript:
        transcript(started(SESSION))
        transcript(SessionEnded(status="completed", stop_reason="done", text="all well", steps=2, calls=3))
    return tmp_path


def imported(state: Path, *arguments: str, **variables: str) -> tuple[str, set[str]]:
    """Return what a command printed, and the modules it has imported."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "PYTHONPATH": str(ROOT),
        "SANDHOG_STATE_DIR": str(state),
        **variables,
    }
    argv = [sys.executable, "-c", LOOK, *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "said", "more"),
    [
        (["ps", "--all", "--json"], SESSION, {"redis", "rich.table"}),
        (["ps", "--all"], SESSION, {"redis", "rich.table"}),
        (["show", "last", "--json"], "session_ended", {"redis"}),
        (["logs", "last"], "", {"redis"}),
        (["cancel", "last"], "had ended", set()),
        (["approve"], "", set()),
        (["nodes"], "No node is known", set()),
        (["breakers"], "", set()),
        (["wait", "last"], "completed", {"redis"}),
        (["token", "list"], "", {"redis"}),
        (["config", "--help"], "config", {"redis"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_looking_needs_neither_model_nor_server_nor_queue(
    state: Path, arguments: list[str], said: str, more: set[str]
) -> None:
    output, modules = imported(state, *arguments)
    assert said in output
    assert (NEVER | more) & modules == set()


def test_a_session_needs_no_server(state: Path) -> None:
    _, modules = imported(state, "run", "--help")
    assert (SERVER | TRACES | {"tiktoken", "docker"}) & modules == set()


def test_names_of_commands_are_offered_without_the_commands(state: Path) -> None:
    asked = {"COMP_WORDS": "sandhog s", "COMP_CWORD": "1", "_SANDHOG_COMPLETE": "complete_bash"}
    offered, modules = imported(state, **asked)
    assert "show" in offered.split()
    assert {name for name in modules if name.startswith("coordinator.commands.")} == set()
    assert (NEVER | {"redis"}) & modules == set()
