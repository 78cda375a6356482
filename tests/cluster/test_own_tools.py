"""Sessions with own tools on real parts: the examples of the documentation, run as they are."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.parts import Cluster
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.session.approvals import Always, Never
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.wiring import open_cluster
from tests.cluster.conftest import Furnished
from tests.cluster.machines import kept_up
from tools.loading import LoadedTools, load_tools
from worker.contract.orders import Policy

pytestmark = pytest.mark.shared_node

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "docs" / "examples", ROOT / "tests" / "worker" / "own_tools_file.py"]
TOKEN = "tr4cker-key-0815"
SCAN = (
    "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; env; "
    f"grep -rsl {TOKEN[:8]}'{TOKEN[8:]}' /workspace /spill /tmp /run /home; echo scanned"
)
"""Looks for the token where a box could have it, without holding it in one piece itself."""


@pytest.fixture(scope="module")
def loaded() -> LoadedTools:
    return load_tools(FILES)


@pytest.fixture(scope="module")
def tracker() -> Iterator[str]:
    """An issue tracker that answers those who know the token; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            body = json.dumps([{"id": 7, "title": f"crash, seen by {self.path}, {TOKEN}"}]).encode()
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(body if known else b"no")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def own_state_dir(furnished_dir: Furnished) -> Iterator[Path]:
    """The state directory of this module's node; a user of no other rights gets into it."""
    with furnished_dir() as path:
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def secrets_dir(tmp_path_factory: pytest.TempPathFactory, own_state_dir: Path, tracker: str) -> Path:
    """Secrets of two principals, and a database with rows of both."""
    secrets = tmp_path_factory.mktemp("secrets")
    path = own_state_dir / "orders.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (id INTEGER, owner TEXT, item TEXT, cents INTEGER)")
        rows = [(1, "alice", "anvil", 100), (2, "bob", "bellows", 200), (3, "bob", "bolt", 3)]
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
        database.commit()
    path.chmod(0o644)
    for principal in ("alice", "bob"):
        folder = secrets / principal
        folder.mkdir()
        for name, value in (("ORDERS_DATABASE", str(path)), ("TICKETS_URL", tracker), ("TICKETS_TOKEN", TOKEN)):
            (folder / name).write_text(value + "\n")
    return secrets


@pytest.fixture(scope="module")
def embedded_of_module(
    own_state_dir: Path, secrets_dir: Path, loaded: LoadedTools, docker_engine_or_skip: None
) -> Iterator[Embedded]:
    """An embedded cluster whose node has the own tools."""
    running = Embedded(own_state_dir, dead_man_s=20, tools=loaded.files, secrets_dir=secrets_dir)
    yield running
    running.close()


@pytest.fixture
async def cluster(embedded: Embedded, loaded: LoadedTools) -> AsyncIterator[Cluster]:
    async with open_cluster(embedded.redis_url, embedded.state_dir, loaded) as opened:
        yield opened


@pytest.fixture
def marker(embedded: Embedded) -> Path:
    """A file that any user may make."""
    folder = Path(tempfile.mkdtemp(prefix="open-", dir=embedded.state_dir))
    folder.chmod(0o777)
    return folder / "marker"


def text_of(path: Path) -> str:
    """What a file holds; "" when it is not there."""
    return path.read_text() if path.exists() else ""


async def once_written(path: Path, then: Callable[[], object]) -> None:
    """Do something as soon as a file holds something."""
    async with asyncio.timeout(120):
        while not text_of(path):
            await asyncio.sleep(0.02)
    then()


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def give_away(path: Path, like: Path) -> None:
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


@pytest.mark.docker
async def test_the_examples_work_and_the_box_never_sees_their_secret(stage: Any) -> None:
    with closing(sqlite3.connect(stage.project / "data.sqlite")) as database:
        database.execute("CREATE TABLE people (name TEXT)")
        database.execute("INSERT INTO people VALUES ('Ada')")
        database.commit()
    (stage.project / "guide.md").write_text("# Guide\nThe beta release; beta again.\n")
    for name in ("data.sqlite", "guide.md"):
        give_away(stage.project / name, stage.project)
    turn = Turn(
        calls=(
            ScriptedCall("current_time", {"zone": "Europe/Berlin"}),
            ScriptedCall("search_documents", {"query": "Beta release"}),
            ScriptedCall("find_tickets", {"words": "crash"}),
            ScriptedCall("query_orders", {"query": "SELECT item FROM orders"}),
            ScriptedCall("query_file", {"path": "data.sqlite", "query": "SELECT name FROM people"}),
            ScriptedCall("query_file", {"path": "data.sqlite", "query": "DELETE FROM people"}),
            ScriptedCall("current_time", {"zone": "Nowhere/Atall"}),
            ScriptedCall("Bash", {"command": SCAN}),
        )
    )
    played = await stage.play([turn, Turn("done")], principal="alice")
    clock, documents, tickets, orders, rows, deleted, nowhere, scan = contents(played)

    assert clock["text"][10] == "T"
    assert clock["text"].endswith(("+01:00", "+02:00"))
    assert documents["text"].splitlines() == [
        "./guide.md",
        "  2: The beta release; beta again.",
        "./a.txt",
        "  2: beta",
    ]
    assert tickets["status"] == "success", json.dumps(tickets)
    assert tickets["text"] == "7: crash, seen by /search?q=crash&user=alice, [secret TICKETS_TOKEN]"
    assert json.loads(orders["text"]) == {"columns": ["item"], "rows": [["anvil"]]}
    assert json.loads(rows["text"]) == {"columns": ["name"], "rows": [["Ada"]]}
    assert deleted["error"]["code"] == "INVALID_PARAM"
    assert "readonly" in deleted["error"]["message"]
    assert nowhere["error"]["code"] == "INVALID_PARAM"
    assert scan["text"].splitlines()[-1] == "scanned"
    assert not [row for row in scan["text"].splitlines() if row.startswith(("/workspace/", "/spill/", "/tmp/"))]
    assert TOKEN not in json.dumps(played.requests)
    for file in Path(played.result.transcript).parent.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


@pytest.mark.docker
async def test_nobody_reads_the_rows_of_another(stage: Any) -> None:
    queries = (
        "SELECT item FROM orders ORDER BY id",
        "SELECT item FROM orders WHERE 1=1 OR owner='alice'",
        "SELECT item FROM main.orders UNION ALL SELECT name FROM sqlite_master",
        "ATTACH DATABASE '/tmp/x' AS other",
        "PRAGMA database_list",
        "DELETE FROM orders",
        "SELECT 1; SELECT 2",
        "SELECT load_extension('x')",
    )
    turn = Turn(calls=tuple(ScriptedCall("query_orders", {"query": query}) for query in queries))
    played = await stage.play([turn, Turn("done")], principal="bob")
    answers = contents(played)

    assert json.loads(answers[0]["text"])["rows"] == [["bellows"], ["bolt"]]
    assert [answer["status"] for answer in answers] == ["success", "error", "success", *["error"] * 5], answers
    assert "anvil" not in json.dumps(answers)


@pytest.mark.docker
async def test_a_bad_tool_fails_alone(stage: Any, until: Callable[..., None]) -> None:
    turn = Turn(
        calls=(
            ScriptedCall("greet", {"name": "you"}),
            ScriptedCall("end", {"how": "kill"}),
            ScriptedCall("junk", {"kind": "set"}),
            ScriptedCall("hang", {"marker": "/tmp/none/at/all"}),
            ScriptedCall("in_box", {"command": "echo second; sleep 30"}),
            ScriptedCall("leaks", {"how": "answer"}),
            ScriptedCall("later", {"value": {"a": 1}}),
            ScriptedCall("Read", {"path": "a.txt"}),
        )
    )
    played = await stage.play([turn, Turn("done")])
    answers = contents(played)

    assert [answer.get("error", {}).get("code") for answer in answers] == [
        None,
        "INTERNAL_ERROR",
        "INTERNAL_ERROR",
        "INTERNAL_ERROR",
        None,
        "EXECUTION_ERROR",
        None,
        None,
    ], answers
    assert json.loads(answers[4]["text"]) == {
        "first": "$HOME is not read",
        "second": "second\n",
        "exit_code": None,
        "timed_out": True,
    }


@pytest.mark.docker
async def test_a_call_whose_node_dies_runs_once_and_the_session_goes_on(
    stage: Any, embedded: Embedded, marker: Path
) -> None:
    turn = Turn(
        calls=(
            ScriptedCall("wait", {"marker": str(marker)}),
            ScriptedCall("greet", {"name": "you"}),
        )
    )
    worker = embedded.worker_pid
    async with kept_up(embedded):
        kill = asyncio.create_task(once_written(marker, lambda: os.kill(worker, signal.SIGKILL)))
        played = await stage.play([turn, Turn("done")])
        await kill
    waited, greeted = contents(played)

    assert played.result.status == "completed"
    assert waited["error"]["code"] == "OUTCOME_UNKNOWN"
    assert greeted["text"] == "hello you"
    (pid,) = text_of(marker).split()
    assert text_of(Path(f"/proc/{pid}/cmdline")) == ""


@pytest.mark.docker
async def test_a_cancelled_session_ends_its_own_tools(stage: Any, marker: Path) -> None:
    cancelled = asyncio.Event()
    turn = Turn(
        calls=(
            ScriptedCall("long_in_box", {"command": "echo > begun; sleep 60"}),
            ScriptedCall("wait", {"marker": str(marker)}),
        )
    )
    begun = asyncio.create_task(once_written(stage.project / "begun", cancelled.set))
    played = await stage.play([turn, Turn("done")], cancelled=cancelled)
    await begun

    assert played.result.status == "cancelled"
    finished = [event for event in played.events if isinstance(event, CallFinished)]
    assert [event.error_code for event in finished] == ["CANCELLED", "CANCELLED"]
    assert "long_in_box was cancelled and ended" in finished[0].answer, "the node says so: it did not wait for the box"
    assert text_of(marker) == ""


@pytest.mark.docker
async def test_the_guarded_policy_asks_for_what_does_not_only_read(stage: Any) -> None:
    turn = Turn(calls=(ScriptedCall("greet", {"name": "you"}), ScriptedCall("later", {"value": {"a": 1}})))
    denied = await stage.play([turn, Turn("done")], policy=Policy.GUARDED, approver=Never())
    granted = await stage.play([turn, Turn("done")], policy=Policy.GUARDED, approver=Always())

    codes = [answer.get("error", {}).get("code") for answer in contents(denied)]
    assert codes == [None, "PERMISSION_DENIED"]
    assert [answer["status"] for answer in contents(granted)] == ["success", "success"]


@pytest.mark.docker
async def test_safe_calls_travel_together(stage: Any, marker: Path) -> None:
    # Each waits for all the others: they run at the same time, or not at all.
    turn = Turn(calls=tuple(ScriptedCall("meet", {"place": str(marker.parent), "count": 3}) for _ in "abc"))
    played = await stage.play([turn, Turn("done")])
    started = [event.index for event in played.events if isinstance(event, CallStarted)]
    first_end = next(at for at, event in enumerate(played.events) if isinstance(event, CallFinished))

    assert started == [0, 1, 2]
    assert sum(isinstance(event, CallStarted) for event in played.events[:first_end]) == 3
    assert [answer["text"] for answer in contents(played)] == ["met"] * 3


@pytest.mark.docker
async def test_a_node_without_the_sessions_tools_is_not_taken(embedded: Embedded, stage: Any) -> None:
    # Takes as long as nodes with other tools are waited for.
    async with open_cluster(embedded.redis_url, embedded.state_dir, load_tools([FILES[1]])) as other:
        stage.cluster = other
        played = await stage.play([Turn(calls=(ScriptedCall("greet", {"name": "you"}),)), Turn("done")])
    assert played.result.status == "failed"
    assert "No worker has the own tools of this session" in played.result.stop_reason
    assert "has others" in played.result.stop_reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero (line 1)"),
        ("x = 1", "it holds no tool"),
        (None, "there is no such file"),
    ],
)
def test_tools_that_cannot_be_loaded_are_bad_usage(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    environment = {**os.environ, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "SANDHOG_STATE_DIR": str(tmp_path)}
    program = "from coordinator.start import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "run", "do it", "--model", "m", "--tools", str(file)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert f"sandhog: Your own tools cannot be loaded: {file}: {words}" in ran.stderr
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.docker
def test_the_command_takes_tools_from_its_option_and_its_environment(state_dir: Path, project: Path) -> None:
    turn = Turn(calls=(ScriptedCall("current_time", {}), ScriptedCall("greet", {"name": "you"})))
    with ScriptedEndpoint([turn, Turn("done")]) as endpoint:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(state_dir),
            "OPENAI_BASE_URL": endpoint.base_url,
            "SANDHOG_STATE_DIR": str(state_dir),
            "SANDHOG_TOOLS": str(FILES[0]),
            "SANDHOG_STRICT_TOOLS": "1",
            "PYTHONPATH": str(ROOT),
        }
        program = "from coordinator.start import main; main()"
        options = ["--model", "scripted", "--workspace", str(project), "--json", "--tools", str(FILES[1])]
        ran = subprocess.run(
            [sys.executable, "-c", program, "run", "do it", *options],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        requests = list(endpoint.requests)
    assert ran.returncode == 0, ran.stderr
    offered = {entry["function"]["name"]: entry["function"] for entry in requests[0]["tools"]}
    assert {"current_time", "greet", "Read"} <= offered.keys()
    assert offered["greet"]["parameters"]["required"] == ["name", "times"]
    assert offered["greet"]["strict"] is True
    answers = [json.loads(one["content"]) for one in requests[-1]["messages"] if one["role"] == "tool"]
    assert [answer["status"] for answer in answers] == ["success", "success"]
    assert not list((state_dir / "runs").iterdir())
