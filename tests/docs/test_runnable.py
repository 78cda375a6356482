"""The blocks of the pages that are marked to be run, and the lines that start something, with real boxes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn, load_script
from tests.cluster.commands import SECRET, leftovers
from tests.cluster.serving import serving
from tests.docs.ledger import SERVED, STARTING
from tests.docs.pages import PAGES, ROOT, blocks
from tests.sandbox.gvisor import missing_gvisor

# Many commands one after the other: seconds on a quiet machine, minutes on one that is busy.
pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(300)]

GETTING_STARTED = ROOT / "docs/getting-started.md"
OWN_LOOP = ROOT / "docs/bring-your-own-loop.md"


def write_files(page: Path, directory: Path) -> None:
    """Write the files that a page shows."""
    for block in blocks(page):
        if block.mark == "file":
            (directory / block.file).write_text(block.text)


def run_blocks(page: Path, directory: Path, environment: dict[str, str]) -> str:
    """Run the marked blocks of a page as one script that ends with the first failure; return what it printed."""
    script = "\n".join(block.text for block in blocks(page) if block.mark == "run")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=directory,
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=270,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def test_getting_started_does_what_it_says(
    state_dir: Path, tmp_path: Path, docker_engine_or_skip: None, until: Callable[..., None]
) -> None:
    write_files(GETTING_STARTED, tmp_path)
    with ScriptedEndpoint(load_script(tmp_path / "script.json")) as endpoint:
        environment = {
            "HOME": str(state_dir),
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": SECRET,
            "SANDHOG_STATE_DIR": str(state_dir),
            "SANDHOG_PROOFS_DIR": os.environ["SANDHOG_PROOFS_DIR"],
        }
        said = run_blocks(GETTING_STARTED, tmp_path, environment)
    assert "REMEMBER THE MILK" in (tmp_path / "project/loud.txt").read_text()
    assert "completed" in said
    until(lambda: not leftovers(state_dir), "the commands' clusters are gone")


def test_a_loop_of_your_own_does_what_it_says(
    state_dir: Path, tmp_path: Path, docker_engine_or_skip: None, until: Callable[..., None]
) -> None:
    write_files(GETTING_STARTED, tmp_path)
    write_files(OWN_LOOP, tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("remember the milk\n")
    script = load_script(tmp_path / "script.json")
    with serving(script, state_dir, until, SANDHOG_ROOTS=f'{{"project": "{project}"}}') as server:
        said = run_blocks(OWN_LOOP, tmp_path, {**server.environment, "SANDHOG_URL": server.url})
    assert "loud.txt has the notes in capitals." in said
    assert "+REMEMBER THE MILK" in said


def model() -> Callable[[list[dict[str, Any]]], Turn]:
    """Return a model that breaks two replies off, asks where it, or its sub-agent, is told to wait, or looks around."""
    broken_off: list[bool] = []

    def turn(messages: list[dict[str, Any]]) -> Turn:
        replies = sum(one["role"] == "assistant" for one in messages)
        said = str([one["content"] for one in messages if one["role"] == "user"])
        if "delegate" in said:
            task = {"description": "Make it", "prompt": "wait", "profile": "general"}
            calls = [ScriptedCall("Bash", {"command": "ls"}), ScriptedCall("Task", task)]
            return Turn(calls=(calls[replies],)) if replies < len(calls) else Turn("done")
        if "wait" in said:
            command = "ls" if replies < 2 else "touch made"
            return Turn(calls=(ScriptedCall("Bash", {"command": command}),)) if replies < 3 else Turn("done")
        if len(broken_off) < 2:
            broken_off.append(True)
            return Turn("so far", finish_reason="content_filter")
        return Turn("done") if messages[-1]["role"] == "tool" else Turn(calls=(ScriptedCall("Glob", {"pattern": "*"}),))

    return turn


def run_line(line: str, directory: Path, environment: dict[str, str], most: int = 0) -> str:
    """Run one line; return what it printed. Its exit code is at most the one given."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode <= most, f"{line}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.mark.timeout(900)
def test_lines_that_start_something_do_what_they_say(
    state_dir: Path, tmp_path: Path, docker_engine_or_skip: None, until: Callable[..., None]
) -> None:
    """Sessions of every kind that the pages show, and the doctor; in a home and a directory of the test's own."""
    project = state_dir / "src" / "app"
    project.mkdir(parents=True)
    (project / "a.txt").write_text("alpha\n")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    with ScriptedEndpoint(model()) as endpoint:
        environment = {
            "HOME": str(state_dir),
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": SECRET,
            "SANDHOG_MODEL": "scripted",
            "SANDHOG_STATE_DIR": str(state_dir),
            "SANDHOG_PROOFS_DIR": os.environ["SANDHOG_PROOFS_DIR"],
            "SANDHOG_LABELS": "zone=a",
        }
        before = ""
        for line in STARTING:
            if line.startswith("export "):
                before = f"{line}\n"
            elif "--profile" in line and missing_gvisor() is not None:
                continue
            else:
                # The first session is broken off, and once more; a doctor may warn of the machine.
                most = 1 if line in STARTING[:2] or " doctor" in line else 0
                talk = "echo 'list the files' | " if line.startswith("sandhog chat") else ""
                said = run_line(before + talk + line, tmp_path, environment, most)
                assert "Traceback" not in said, said
    assert (tmp_path / "doctor.tar.gz").stat().st_size > 1_000
    until(lambda: not leftovers(state_dir), "the commands' clusters are gone")


def test_lines_about_what_runs_do_what_they_say(
    state_dir: Path, tmp_path: Path, docker_engine_or_skip: None, until: Callable[..., None]
) -> None:
    """Answers, cancel, drain, metrics, on a server that runs with a session that waits."""
    token = "a-token-for-prometheus"
    with serving(model(), state_dir, until, SANDHOG_METRICS_TOKEN=token) as server:
        client = server.client()

        def session_that_waits(prompt: str) -> str:
            body = {"prompt": prompt, "policy": "guarded"}
            made: str = client.post("/v1/sessions", json=body).json()["session_id"]
            until(lambda: client.get(f"/v1/sessions/{made}/approvals").json()["approvals"], "it asks")
            return made

        environment = {**server.environment, "SANDHOG_METRICS_TOKEN": token}
        until(lambda: client.get("/v1/nodes").json()["nodes"], "its node is there")
        node = client.get("/v1/nodes").json()["nodes"][0]["node"]
        for line in SERVED:
            ours = line.replace("http://127.0.0.1:8470", server.url).replace("NODE", node)
            if "SESSION" in line or " last" in line:
                ours = ours.replace("SESSION", session_that_waits("delegate" if "1-2-0" in line else "wait"))
            said = run_line(ours, tmp_path, environment)
            assert "Traceback" not in said, said
            if "metrics" in line:
                assert "sandhog_approvals_waiting 0" in said
        states = {"completed", "cancelled"}
        until(lambda: {one["status"] for one in client.get("/v1/sessions").json()["sessions"]} == states, "all ended")
        client.close()


def test_no_marked_block_is_left_out() -> None:
    marked = {page for page in PAGES if any(block.mark == "run" for block in blocks(page))}
    assert marked == {GETTING_STARTED, OWN_LOOP}, "a page with marked blocks needs a test here"
