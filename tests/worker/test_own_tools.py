"""Own tools on a node: real child processes, with the rights they really have."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from tests.orders import box_order, call_order
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.loading import LoadedTools, load_tools
from tools.schema import parse_arguments
from worker.contract.orders import CallKey, WorkspaceMode
from worker.gates.gate import GateCall
from worker.own_secrets import Secrets
from worker.own_tools import OwnTools
from worker.own_wire import FIRST_OWN_UID, Job, OwnLimits
from worker.spill import SpillFile

FILE = Path(__file__).with_name("own_tools_file.py")
KEY = CallKey(session="s1", generation=1, step=1, index=0)
TOKEN = "t0ken-4711"
Until = Callable[..., None]
Run = Callable[..., ToolResult]


@pytest.fixture(scope="session")
def loaded() -> LoadedTools:
    return load_tools([FILE])


@pytest.fixture
def scratch(state_dir: Path) -> Path:
    state_dir.chmod(0o755)
    return state_dir / "scratch"


@pytest.fixture
def own(loaded: LoadedTools, scratch: Path, tmp_path: Path) -> Iterator[OwnTools]:
    (tmp_path / "secrets" / "alice").mkdir(parents=True)
    (tmp_path / "secrets" / "alice" / "TOKEN").write_text(f"{TOKEN}\n")
    own = OwnTools(loaded, Secrets(tmp_path / "secrets"), scratch)
    yield own
    own.close()
    assert not scratch.exists()


@pytest.fixture
def make_call(loaded: LoadedTools, tmp_path: Path) -> Callable[..., GateCall]:
    def make(name: str, /, *, principal: str = "alice", joining: bool = False, **arguments: JsonValue) -> GateCall:
        tool = loaded.registry.get(name)
        assert tool is not None
        box = box_order(session_dir=tmp_path, workspace_mode=WorkspaceMode.COPY)
        order = call_order(name, arguments, key=KEY, box=box, principal=principal, attributes={"team": "red"})
        return GateCall(order, tool, parse_arguments(tool, arguments), SpillFile(tmp_path, KEY), joining)

    return make


@pytest.fixture
def run(own: OwnTools, make_call: Callable[..., GateCall]) -> Run:
    def run(name: str, /, **arguments: Any) -> ToolResult:
        return own.run(make_call(name, **arguments), None)

    return run


def failure(run: Run, name: str, /, **arguments: Any) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        run(name, **arguments)
    return caught.value


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_sync_async_bare_and_class_tools_run(run: Run) -> None:
    assert run("greet", name="you", times=2).text == "hello you\nhello you"
    assert json.loads(run("later", value={"a": 1}).text) == {"a": 1}
    assert run("shout", input="quiet").text == "QUIET"
    assert run("Count", text="abc").text == "3 for alice"
    assert json.loads(run("far", points=[{"x": 1}, {"x": 2, "y": -5}], factor=2.0).text) == {"x": 4, "y": -10}


def test_a_call_finds_nothing_of_the_node_around_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDHOG_REDIS_URL", "redis://:hush@redis")
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    found = json.loads(run("whoami").text)

    assert "hush" not in json.dumps(found)
    assert set(found["environment"]) <= {
        "PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "HOME", "TMPDIR", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE",
    }  # fmt: skip
    assert found["cwd"] == found["environment"]["HOME"]
    assert found["session"] == found["pid"]
    assert found["stdin"] == ""
    assert found["principal"] == "alice"
    assert found["attributes"] == {"team": "red"}
    assert found["call_key"] == str(KEY)
    assert found["secrets"] == {}
    assert not Path(found["cwd"]).exists(), "its directory is gone"
    if os.geteuid() == 0:
        assert found["uid"] == FIRST_OWN_UID + found["pid"]
        assert found["groups"] == []


@pytest.mark.parametrize("how", ["answer", "raise", "refuse", "flood", "large"])
def test_a_secret_leaves_by_no_way(run: Run, how: str, caplog: pytest.LogCaptureFixture) -> None:
    try:
        told = run("leaks", how=how).model_dump_json()
    except ToolFailure as exc:
        told = exc.message

    assert "[secret TOKEN]" in told
    # Not a part of it either, where a long text was cut.
    assert TOKEN[:4] not in told
    assert "[secret TOKEN]" in caplog.text
    assert TOKEN[:4] not in caplog.text


@pytest.mark.parametrize("principal", ["bob", "../secrets/alice", "alice/..", "", "."])
def test_nobody_gets_the_secret_of_another(run: Run, principal: str) -> None:
    told = failure(run, "leaks", how="answer", principal=principal)

    assert told.code is ErrorCode.EXECUTION_ERROR
    assert "needs the secret 'TOKEN'" in told.message


def test_a_tool_that_never_returns_is_killed_with_all_it_started(run: Run, state_dir: Path, until: Until) -> None:
    (state_dir / "open").mkdir()
    (state_dir / "open").chmod(0o777)
    marker = state_dir / "open" / "marker"
    told = failure(run, "hang", marker=str(marker))

    assert told.code is ErrorCode.TIMEOUT
    assert "within 4 s" in told.message
    pid, escaped = (int(word) for word in marker.read_text().split())
    assert not is_running(pid)
    if os.geteuid() == 0:
        until(lambda: not is_running(escaped), "the process of another session is gone")
    else:
        os.kill(escaped, 9)


def test_a_cancelled_call_ends_at_once(
    own: OwnTools, make_call: Callable[..., GateCall], state_dir: Path, until: Until
) -> None:
    (state_dir / "open").mkdir()
    (state_dir / "open").chmod(0o777)
    marker = state_dir / "open" / "marker"
    codes: list[ErrorCode] = []

    def call() -> None:
        with pytest.raises(ToolFailure) as caught:
            own.run(make_call("wait", marker=str(marker)), None)
        codes.append(caught.value.code)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: marker.exists() and marker.read_text() != "", "it runs")
    assert is_running(int(marker.read_text()))
    own.cancel(["s1:1:1:9:1"])
    assert is_running(int(marker.read_text()))
    own.cancel([str(KEY)])
    thread.join(60)

    assert codes == [ErrorCode.CANCELLED]
    assert not is_running(int(marker.read_text()))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "raised SystemExit: 3"),
        ("os_exit", "ended with exit code 4 without a result"),
        ("kill", "ended by signal 9 without a result"),
        ("raise", "raised KeyError: 'no such thing'"),
        ("surrogate", "not Unicode"),
        ("close", "without a result"),
    ],
)
def test_a_bad_end_is_one_typed_error(run: Run, how: str, words: str) -> None:
    told = failure(run, "end", how=how)

    assert told.code is ErrorCode.INTERNAL_ERROR
    assert words in told.message


def test_a_call_takes_no_more_than_its_limits(
    loaded: LoadedTools, scratch: Path, make_call: Callable[..., GateCall]
) -> None:
    limits = OwnLimits(memory_bytes=1024 * 1024 * 1024, processes=20)
    own = OwnTools(loaded, Secrets(None), scratch, limits=limits)
    try:
        with pytest.raises(ToolFailure) as caught:
            own.run(make_call("greedy", of="memory"), None)
        assert caught.value.code is ErrorCode.LIMIT_REACHED
        assert "more memory than the 1024 MiB that a call may have" in caught.value.message
        assert own.run(make_call("greedy", of="core"), None).text == "(0, 0)"
        if os.geteuid() == 0:
            text = own.run(make_call("greedy", of="processes"), None).text
            assert text.startswith("refused after 1"), text
        assert own.run(make_call("greet", name="you"), None).text == "hello you"
    finally:
        own.close()


def test_a_thread_left_behind_holds_nobody(run: Run) -> None:
    assert run("end", how="thread").text == "ended"


@pytest.mark.parametrize("kind", ["set", "nan", "bytes", "object", "unvalidated"])
def test_what_json_cannot_hold_is_one_typed_error(run: Run, kind: str) -> None:
    told = failure(run, "junk", kind=kind)

    assert told.code is ErrorCode.INTERNAL_ERROR
    assert "JSON cannot hold" in told.message


@pytest.mark.parametrize(("kind", "text"), [("none", "no output"), ("empty", "empty"), ("list", '[1,"two",null]')])
def test_what_is_no_result_but_json_becomes_one(run: Run, kind: str, text: str) -> None:
    assert text in run("junk", kind=kind).text


def test_large_data_is_capped(run: Run) -> None:
    assert run("junk", kind="large").data == {"small": 1, "left_out_bytes": 100_031}


def test_the_models_mistakes_are_told_apart_from_the_tools(run: Run) -> None:
    assert failure(run, "strict_number", text="x").code is ErrorCode.INVALID_PARAM
    assert run("strict_number", text="7").text == "7"


def test_a_tool_on_the_worker_has_no_box(run: Run) -> None:
    assert 'declare it with runs_on="box"' in failure(run, "wants_box").message


def test_a_call_of_an_earlier_life_is_not_started_again(own: OwnTools, make_call: Callable[..., GateCall]) -> None:
    with pytest.raises(ToolFailure) as caught:
        own.run(make_call("greet", name="you", joining=True), None)
    assert caught.value.code is ErrorCode.OUTCOME_UNKNOWN


def test_a_file_that_changed_under_the_node_runs_nothing(
    scratch: Path, make_call: Callable[..., GateCall], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(FILE.read_bytes())
    own = OwnTools(load_tools([file]), Secrets(None), scratch)
    file.write_bytes(FILE.read_bytes() + b"\n")
    try:
        with pytest.raises(ToolFailure, match="changed since the node started"):
            own.run(make_call("greet", name="you"), None)
    finally:
        own.close()


HOLDER = """
import sys
import time
from pathlib import Path
from worker.own_process import OwnProcess
home, job = sys.argv[1:]
process = OwnProcess(Path(home))
process.say(job.encode() + b"\\n")
while process.hear(time.monotonic() + 60):
    pass
"""


def test_a_call_ends_when_its_node_is_killed(loaded: LoadedTools, state_dir: Path, until: Until) -> None:
    state_dir.chmod(0o777)
    marker, home = state_dir / "marker", state_dir / "home"
    home.mkdir()
    job = Job(
        tool="wait",
        arguments={"marker": str(marker)},
        principal="alice",
        attributes={},
        session="s1",
        call_key=str(KEY),
        secrets={},
        files=loaded.files,
        digest=loaded.digest,
        home=str(home),
        has_own_user=os.geteuid() == 0,
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home), job.model_dump_json()], env={"PYTHONPATH": str(Path.cwd())}
    )
    until(lambda: marker.exists() and marker.read_text() != "", "it runs")
    pid = int(marker.read_text())
    assert is_running(pid)
    holder.kill()
    holder.wait()

    until(lambda: not is_running(pid), "the call ended with its node")
