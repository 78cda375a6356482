"""The command lines of the docs that look at sessions, run as they stand on one that was kept."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import cli
from tests.coordinator.page.conftest import keep_session
from tests.coordinator.page.example import ordinary
from tests.docs.ledger import LOOKING

SESSION = "20300131-120001-00000001"
SAYS = {
    "sandhog show last": "The tests of this project fail.",
    "sandhog show 20300131-12 --step 3": "Now the tests.",
    "sandhog show last --raw 3.0": "all of it",
    "sandhog show last --json": '"session_ended"',
    "sandhog logs last": "pytest",
    "sandhog logs last --json": '"call_finished"',
    "sandhog ps --all": SESSION,
    "sandhog ps --all --json": SESSION,
    "sandhog wait last --timeout 600": "completed",
    "sandhog export last --format openai-jsonl": '"role"',
    "sandhog explain 'cd src && pytest -q | tail -3'": "pytest",
    "sandhog config": "state_dir",
}
"""What must be in what a line prints."""


def test_each_line_does_what_its_page_says(
    state_dir: Path, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ordinary(SESSION)
    told.end()
    directory = keep_session(state_dir, SESSION, told.events)
    (directory / "spill").mkdir()
    (directory / "spill" / "3-0.txt").write_text("all of it\n")
    for name, value in {"SANDHOG_STATE_DIR": str(state_dir), "SANDHOG_REDIS_URL": redis_url, "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line in LOOKING:
        written = re.fullmatch(r"(.*) > ([\w.]+)", line)
        command, file = written.groups() if written else (line, "")
        done = CliRunner().invoke(cli, shlex.split(command)[1:])
        if done.exit_code != 0 or SAYS.get(line, "") not in done.output:
            wrong.append(f"{line}: {done.exit_code} {done.output} {done.exception!r}")
        if file:
            Path(file).write_text(done.stdout)
    assert wrong == []
    assert '"role"' in Path("chat.json").read_text()
    assert "state_dir" in Path("config.toml").read_text()
