"""The blocks of the pages that are marked to be run, with real boxes and the model that the page itself scripts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.endpoint.scripted import ScriptedEndpoint, load_script
from tests.cluster.commands import SECRET, leftovers
from tests.cluster.test_api import serving
from tests.docs.pages import PAGES, ROOT, blocks

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


def test_no_marked_block_is_left_out() -> None:
    marked = {page for page in PAGES if any(block.mark == "run" for block in blocks(page))}
    assert marked == {GETTING_STARTED, OWN_LOOP}, "a page with marked blocks needs a test here"
