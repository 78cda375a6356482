"""`sandhog run --repo`: a session on a commit that its node fetches."""

import subprocess
from pathlib import Path

import pytest

from coordinator.endpoint.scripted import ScriptedCall, Turn
from tests.cluster.commands import ended, leftovers, running

pytestmark = pytest.mark.docker


def test_a_session_works_on_a_commit_of_a_repository_and_gives_a_patch(
    state_dir: Path, mirror: tuple[str, str], tmp_path: Path
) -> None:
    url, commit = mirror
    look = "cat a.txt; git status --short; git log --format=%s; cat .git/config; echo more >> a.txt"
    script = [Turn(calls=(ScriptedCall("Bash", {"command": look}),)), Turn("done")]
    arguments = ["run", "go", "--repo", f"{url}/org/repo", "--ref", commit, "--json", "--keep"]
    with running(script, state_dir, *arguments, SANDHOG_GIT_HOSTS='["127.0.0.1"]') as process:
        result, err = ended(process)
    assert result["status"] == "completed", err
    assert result["workspace"] == f"{url}/org/repo at {commit}"
    transcript = Path(result["transcript"])
    seen = next(line for line in transcript.read_text().splitlines() if '"call_finished"' in line)
    assert "first" in seen
    assert "second" not in seen
    assert "fatal" not in seen
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", f"{url}/org/repo", clone], check=True)
    subprocess.run(["git", "checkout", "-q", commit], cwd=clone, check=True)
    subprocess.run(["git", "apply", "-"], input=result["patch"], cwd=clone, check=True, text=True)
    assert (clone / "a.txt").read_text() == "first\nmore\n"
    assert list(transcript.parent.rglob("a.txt")), "--keep leaves the copy"
    assert leftovers(state_dir) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--repo", "https://example.org/r", "--bind"], 2, "--repo is fetched"),
        (["--repo", "http://127.0.0.1:9/r"], 1, "plain http is not spoken"),
        (["--repo", "https://bot:hunter2@example.org/r"], 2, "must not hold a user or password"),
        (["--repo", "https://example.org/r", "--ref=-x"], 2, "is no name of a branch"),
    ],
)
def test_what_is_not_fetched_is_told(state_dir: Path, arguments: list[str], code: int, words: str) -> None:
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "true"}),)), Turn("done")]
    with running(script, state_dir, "run", "go", *arguments) as process:
        out, err = process.communicate(timeout=100)
    assert (process.returncode, words in out + err) == (code, True), out + err
    assert "hunter2" not in out + err
    assert not [path for path in state_dir.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
