"""What a user gives a session besides a prompt: hosts, variables, files, a set-up; through the real command."""

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from coordinator.endpoint.scripted import Script, ScriptedCall, Turn
from sandbox.controls import GVISOR_KERNEL
from sandbox.making import MADE_BY_LABEL
from tests.cluster.commands import ended, leftovers, running
from tests.sandbox.gvisor import RUNTIME, missing_gvisor

pytestmark = pytest.mark.docker

VALUE = f"very-secret-{uuid.uuid4().hex}"
FETCH = (
    "env -u no_proxy -u NO_PROXY python3 -c 'import sys, urllib.request as r;"
    " print(r.urlopen(sys.argv[1], timeout=10).read().decode())' {url} 2>&1 | tail -1"
)


class Host(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"outside says hello")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def host() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def bash(*commands: str) -> Script:
    return [*(Turn(calls=(ScriptedCall("Bash", {"command": command}),)) for command in commands), Turn("done")]


def seen(result: dict[str, Any]) -> list[str]:
    """What the calls of a session answered, as its transcript has it."""
    events = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
    return [json.dumps(event) for event in events if event.get("type") == "call_finished"]


def test_a_session_reaches_the_hosts_that_were_allowed_and_no_other(state_dir: Path, project: Path, host: int) -> None:
    script = bash(FETCH.format(url=f"http://localhost:{host}/"), FETCH.format(url="http://elsewhere.test/"))
    arguments = ["run", "go", "--workspace", str(project), "--json", "--allow-host", f"localhost:{host}"]
    with running(script, state_dir, *arguments, SANDHOG_EGRESS_PRIVATE='["localhost"]') as process:
        result, err = ended(process)
    assert result["status"] == "completed", err
    first, second = seen(result)
    assert "outside says hello" in first
    assert "403" in second
    transcript = Path(result["transcript"]).read_text()
    assert f"commands reach only localhost:{host}" in transcript, "the model is told"
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("runtime", ["runc", RUNTIME])
def test_a_profile_names_hosts_on_either_runtime(state_dir: Path, project: Path, host: int, runtime: str) -> None:
    if runtime == RUNTIME and (reason := missing_gvisor()) is not None:
        pytest.skip(reason)
    profile = {"network": "allowlist", "hosts": [f"localhost:{host}"], "runtime": runtime}
    settings = {"SANDHOG_PROFILES": json.dumps({"out": profile}), "SANDHOG_EGRESS_PRIVATE": '["localhost"]'}
    script = bash(FETCH.format(url=f"http://localhost:{host}/"), FETCH.format(url="http://elsewhere.test/"), "uname -r")
    arguments = ["run", "go", "--workspace", str(project), "--json", "--profile", "out"]
    with running(script, state_dir, *arguments, **settings) as process:
        result, err = ended(process)
    assert result["status"] == "completed", err
    allowed, refused, kernel = seen(result)
    assert "outside says hello" in allowed
    assert "403" in refused
    assert (GVISOR_KERNEL in kernel) == (runtime == RUNTIME)
    assert leftovers(state_dir) == []


def test_a_private_address_needs_the_operators_word_too(state_dir: Path, project: Path, host: int) -> None:
    script = bash(FETCH.format(url=f"http://localhost:{host}/"))
    arguments = ["run", "go", "--workspace", str(project), "--json", "--allow-host", f"localhost:{host}"]
    with running(script, state_dir, *arguments) as process:
        result, _ = ended(process)
    assert "403" in seen(result)[0]


def test_variables_and_files_reach_the_box_and_values_stay_out_of_all_that_is_kept(
    state_dir: Path, project: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    note.write_text("from outside")
    (tmp_path / "env").write_text(f"FROM_FILE={VALUE}2\n")
    look = "echo $GIVEN; echo $NAMED; echo $FROM_FILE | rev; cat in/note; echo ${#GIVEN}"
    arguments = ["run", "go", "--workspace", str(project), "--json", "--env", f"GIVEN={VALUE}", "--env", "NAMED"]
    arguments += ["--env-file", str(tmp_path / "env"), "--file", f"{note}:in/note"]
    with running(bash(look), state_dir, *arguments, NAMED=f"{VALUE}1") as process:
        result, err = ended(process)
    assert result["status"] == "completed", err
    answer = seen(result)[0]
    assert f"{VALUE}2"[::-1] in answer, "the box had the value, and turned round it is not masked"
    assert "from outside" in answer
    assert str(len(VALUE)) in answer
    assert answer.count("[redacted]") >= 2
    assert result["patch"] == "", "what was brought along is no change"
    session_dir = Path(result["transcript"]).parent
    # Not by reading it all: an empty disk of ten gigabytes is a file with holes.
    found = subprocess.run(["grep", "-rlF", "-e", VALUE, str(state_dir)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, ""), "nothing below the state directory holds a value"
    assert session_dir.is_dir()
    assert VALUE not in err


def test_set_up_is_done_before_the_model_starts(state_dir: Path, project: Path, host: int) -> None:
    fetch = FETCH.format(url=f"http://localhost:{host}/")
    commands = ["--setup", f"{fetch} > /usr/local/share/fetched; echo {VALUE} > /dev/null; sleep 5"]
    commands += ["--setup-network", f"localhost:{host}"]
    script = bash("cat /usr/local/share/fetched", fetch)
    arguments = ["run", "go", "--workspace", str(project), "--json", *commands]
    result: dict[str, Any] = {}
    client = docker.APIClient(version="auto")
    try:
        with running(script, state_dir, *arguments, SANDHOG_EGRESS_PRIVATE='["localhost"]') as process:
            result, err = ended(process)
        assert result["status"] == "completed", err
        fetched, closed = seen(result)
        assert "outside says hello" in fetched
        assert "says hello" not in closed
        events = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
        assert {"Set-up command 1 of 1 runs."} == {event["text"] for event in events if event["type"] == "notice"}
        [placed] = [event for event in events if event["type"] == "session_placed"]
        assert placed["bounds"]["/workspace"].endswith("10 GiB")
        assert leftovers(state_dir) == []
    finally:
        for image in client.images(filters={"label": f"{MADE_BY_LABEL}={result.get('session_id')}"}):
            client.remove_image(image["Id"], force=True)
        client.close()


def test_a_set_up_that_fails_ends_the_session_with_what_it_printed(state_dir: Path, project: Path) -> None:
    arguments = ["run", "go", "--workspace", str(project), "--json", "--setup", "echo no such package; exit 9"]
    with running([Turn("never asked")], state_dir, *arguments) as process:
        result, _ = ended(process)
    assert result["status"] == "failed"
    assert "exit code 9" in json.dumps(result)
    assert "no such package" in json.dumps(result)
    assert leftovers(state_dir) == []


@pytest.mark.parametrize(
    "arguments",
    [("--allow-host", "http://x"), ("--env", "NOT-A-NAME=1"), ("--file", "nowhere:x"), ("--setup-file", "x")],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    state_dir: Path, project: Path, arguments: tuple[str, ...]
) -> None:
    with running([Turn("x")], state_dir, "run", "go", "--workspace", str(project), *arguments) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert arguments[0] in err
