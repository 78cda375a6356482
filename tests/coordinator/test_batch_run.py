"""How a batch goes on: tries, budget, stop. Its sessions are played; `tests/cluster/test_batch.py` has real ones."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.batch.attempt import Attempts, OnImage, Stop
from coordinator.batch.clients import Clients
from coordinator.batch.lines import RETRIED, ResultLine, Results, read_lines
from coordinator.batch.requests import Defaults, Requests
from coordinator.batch.run import MUST_FAIL, Batch, Plan, Progress
from coordinator.batch.tasks import TaskFile
from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.reply import Usage
from coordinator.errors import ConfigError, NoBox, TranscriptError
from coordinator.session.approvals import Never
from coordinator.session.model_table import ModelFacts, ModelTable
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.settings import Settings
from tools.loading import load_tools
from worker.contract.checks import CheckOutcome

Play = Callable[[SessionRequest, int], SessionResult]

TABLE = ModelTable({"*": ModelFacts(input_usd=1.0, output_usd=1.0)})


@dataclass(frozen=True)
class Played(Attempts):
    """Sessions that are over at once: `play` gets the request and how often its prompt was asked before."""

    play: Play = field(kw_only=True)
    asked: list[str] = field(kw_only=True)

    async def attempt(self, request: SessionRequest, model: str | None, on_image: OnImage) -> SessionResult:
        before = self.asked.count(request.prompt)
        self.asked.append(request.prompt)
        on_image("sha256:1")
        await asyncio.sleep(0)
        return self.play(request, before)


class Stage:
    def __init__(self, directory: Path, rows: list[dict[str, Any]]) -> None:
        self.directory = directory
        self.tasks_path = directory / "tasks.jsonl"
        self.tasks_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tools = load_tools()
        settings = Settings(state_dir=directory / "state")
        defaults = Defaults(image="i", profile="medium")
        self.requests = Requests(
            directory, defaults, settings, tools.registry, None, TABLE, {"TOKEN": "value-of-the-token", **os.environ}
        )
        self.asked: list[str] = []
        self.stop: Stop | None = None

    def run(self, play: Play, **plan: Any) -> Progress:
        return asyncio.run(self._run(play, plan))

    async def _run(self, play: Play, plan: dict[str, Any]) -> Progress:
        self.stop = Stop()
        clients = Clients(ModelSettings("m", base_url="http://127.0.0.1:9/v1"))
        attempts = Played(
            cast(Cluster, None), clients, Never(), ["sk-secret-value"], self.stop, play=play, asked=self.asked
        )
        tasks = TaskFile(self.tasks_path, look=self.requests.request)
        with Results(self.directory / "out") as results:
            batch = Batch(
                tasks, self.requests, results, attempts, Plan(**{"concurrency": 1, "pauses_s": (0.0,), **plan})
            )
            done = {(line.id, line.sample) for line in read_lines(results.path)}
            turns = [turn for turn in tasks.turns() if (turn.entry.id, turn.sample) not in done]
            return await batch.run(iter(turns))

    def lines(self) -> dict[str, ResultLine]:
        return {line.id: line for line in read_lines(self.directory / "out" / "results.jsonl")}


def came_to(directory: Path, status: str = "completed", reason: str = "done", cost: float = 0.5) -> SessionResult:
    transcript, patch = directory / "t.jsonl", directory / "p.diff"
    transcript.write_text("{}\n")
    patch.write_text("diff\n")
    fields = {"status": status, "stop_reason": reason, "cost_usd": cost, "usage": Usage(1, 2, 3)}
    paths = {"transcript": str(transcript), "patch": "diff\n", "patch_path": str(patch)}
    rest = {"session_id": "s", "text": "ok", "steps": 2, "calls": 1, "applied": False, "notes": []}
    work = {"workspace": "w", "workspace_mode": "copy", "workspace_reason": ""}
    return SessionResult.model_validate({**fields, **paths, **rest, **work})


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"t{number}", "prompt": f"p{number}", **more} for number in range(count)]


def test_what_breaks_around_a_session_is_tried_again_and_told_apart(tmp_path: Path) -> None:
    def play(request: SessionRequest, before: int) -> SessionResult:
        match request.prompt, before:
            case ("p0", 0):
                raise NoBox("no node is alive")
            case ("p1", _):
                return came_to(tmp_path, "failed", "box: no image")
            case ("p2", _):
                return came_to(tmp_path, "failed", "model: it answered 400: bad")
        return came_to(tmp_path)

    stage = Stage(tmp_path, rows(3, meta={"mine": 1}))
    progress = stage.run(play, tries=3)
    lines = stage.lines()
    assert stage.asked == ["p0", "p0", "p1", "p1", "p1", "p2"]
    assert lines["t0"].is_completed
    assert lines["t0"].image_id == "sha256:1"
    assert lines["t0"].meta == {"mine": 1}
    assert lines["t1"].error is not None
    assert (lines["t1"].error.tries, lines["t1"].error.message) == (3, "box: no image")
    assert lines["t1"].cost == pytest.approx(1.5), "all tries are paid for"
    assert (lines["t2"].status, lines["t2"].error) == ("failed", None)
    assert progress.written == 3
    assert (tmp_path / "out" / "t0" / "patch.diff").read_text() == "diff\n"
    assert (tmp_path / "out" / "t0" / "transcript.jsonl").exists()


def test_a_budget_ends_the_batch_and_limits_each_session(tmp_path: Path) -> None:
    given: list[float | None] = []

    def play(request: SessionRequest, _: int) -> SessionResult:
        given.append(request.limits.cost_usd)
        return came_to(tmp_path)

    stage = Stage(tmp_path, rows(5))
    progress = stage.run(play, budget_usd=1.2)
    assert given == [pytest.approx(1.2), pytest.approx(0.7), pytest.approx(0.2)]
    assert progress.written == 3
    assert "budget is used up" in progress.stopped_by


def test_the_tries_of_a_run_share_what_is_left_of_the_budget_and_all_of_them_count(tmp_path: Path) -> None:
    given: list[float | None] = []

    def play(request: SessionRequest, before: int) -> SessionResult:
        given.append(request.limits.cost_usd)
        if before == 2:
            raise NoBox("no node is alive")
        return came_to(tmp_path, "failed", "box: no image", cost=0.4)

    stage = Stage(tmp_path, rows(3))
    progress = stage.run(play, budget_usd=1.0)
    assert given == [pytest.approx(part) for part in (1.0, 0.6, 0.2, 0.2)]
    assert "budget is used up" in progress.stopped_by
    lines = stage.lines()
    assert [lines[name].cost for name in ("t0", "t1")] == [pytest.approx(0.8), pytest.approx(0.4)]
    assert lines["t1"].error is not None, "the money is spent, so the line stays"
    assert progress.spent_usd == pytest.approx(1.2)


def test_what_an_interrupted_run_cost_is_kept(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rows(2))

    def play(_: SessionRequest, __: int) -> SessionResult:
        assert stage.stop is not None
        stage.stop.soon.set()
        return came_to(tmp_path, "cancelled", "cancelled", cost=0.3)

    stage.run(play)
    assert stage.lines() == {}
    assert [line.cost for line in read_lines(tmp_path / "out" / RETRIED)] == [pytest.approx(0.3)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    directory = tmp_path / "out"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory], check=True)
    yield directory
    subprocess.run(["umount", directory], check=True)


def test_a_full_disk_stops_the_batch_and_the_task_is_run_again_once_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    def play(request: SessionRequest, _: int) -> SessionResult:
        result = came_to(tmp_path)
        Path(str(result.transcript)).write_text("x" * (200_000 if request.prompt == "p1" else 10))
        return result

    stage = Stage(tmp_path, rows(3))
    with pytest.raises(TranscriptError, match=r"t1/transcript.jsonl cannot be written: No space left on device"):
        stage.run(play)
    assert list(stage.lines()) == ["t0"]
    assert list((small_disk / "t1").iterdir()) == [], "nothing half-written is left"
    stage.run(lambda _, __: came_to(tmp_path))
    assert stage.asked == ["p0", "p1", "p1", "p2"]
    assert all(line.patch for line in stage.lines().values())


def test_a_directory_that_cannot_be_made_stops_the_batch_and_what_was_paid_counts(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t0").write_text("in the way")
    stage = Stage(tmp_path, rows(2))
    with pytest.raises(TranscriptError, match=r"t0/transcript.jsonl cannot be written"):
        stage.run(lambda _, __: came_to(tmp_path))
    assert stage.lines() == {}
    assert [line.cost for line in read_lines(tmp_path / "out" / RETRIED)] == [pytest.approx(0.5)]


def test_a_batch_whose_surroundings_are_down_stops_and_goes_on_later(tmp_path: Path) -> None:
    def broken(_: SessionRequest, __: int) -> SessionResult:
        raise NoBox("no node is alive")

    stage = Stage(tmp_path, rows(MUST_FAIL + 5))
    progress = stage.run(broken, tries=1)
    assert "no node is alive" in progress.stopped_by
    assert len(stage.asked) == MUST_FAIL
    assert len(stage.lines()) == MUST_FAIL - 1
    stage.run(lambda _, __: came_to(tmp_path))
    assert sum(line.is_completed for line in stage.lines().values()) == 6


def test_cancelled_runs_leave_no_line(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rows(5))

    def play(request: SessionRequest, _: int) -> SessionResult:
        if request.prompt == "p1":
            assert stage.stop is not None
            stage.stop.soon.set()
            return came_to(tmp_path, "cancelled", "cancelled")
        return came_to(tmp_path)

    progress = stage.run(play)
    assert (progress.written, progress.interrupted) == (1, 1)
    assert list(stage.lines()) == ["t0"]


def test_a_tasks_file_that_changes_ends_the_batch_with_what_was_finished_kept(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rows(3))

    def play(request: SessionRequest, _: int) -> SessionResult:
        if request.prompt == "p1":
            stage.tasks_path.write_text('{"id": "other", "prompt": "x"}\n' * 3)
        return came_to(tmp_path)

    with pytest.raises(ConfigError, match="was changed"):
        stage.run(play)
    assert list(stage.lines()) == ["t0", "t1"]


def test_a_row_says_more_than_the_defaults_and_samples_differ_in_their_seed(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("42")
    row = {
        "id": "a",
        "prompt": "x",
        "samples": 2,
        "params": {"temperature": 0.5, "seed": 10},
        "system": "Be brief.",
        "limits": {"calls": 3},
        "timeout": 60,
        "tools": ["Read", "Bash"],
        "env": ["TOKEN"],
        "check": {"command": "test -f answer.txt"},
        "check_files": ["answer.txt:deep/answer.txt"],
    }
    seen: list[SessionRequest] = []

    def play(request: SessionRequest, _: int) -> SessionResult:
        seen.append(request)
        return came_to(tmp_path).model_copy(update={"check": CheckOutcome(exit_code=0)})

    stage = Stage(tmp_path, [row])
    stage.run(play)
    first = seen[0]
    assert [request.parameters.seed for request in seen] == [11, 12]
    assert (first.parameters.temperature, first.parameters.system) == (0.5, "Be brief.")
    assert (first.limits.calls, first.limits.time_s, first.limits.steps) == (3, 60, 50)
    assert first.ceiling.tools == frozenset({"Read", "Bash"})
    assert dict(first.box.env) == {"TOKEN": "value-of-the-token"}
    assert first.check is not None
    assert [file.path for file in first.check.order.files] == ["deep/answer.txt"]
    assert first.check.order.is_fresh, "the model has been in its own box"
    assert first.origin == "an empty directory"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"workspace": "nowhere"}, "is no directory and no archive"),
        ({"tools": ["Browse"]}, "there is no Browse"),
        ({"env": ["NOT_SET_ANYWHERE"]}, "is not set here"),
        ({"check": "true", "check_files": {"a": "missing"}}, "is no file"),
        ({"files": {"../a": "tasks.jsonl"}}, "no path inside the workspace"),
        ({"allow_hosts": ["http://x"]}, "is no host"),
        ({"repo": "https://bot:hunter2@git.example.org/r"}, r"line 1: repo: .* must not hold a user or password"),
        ({"repo": "ext::sh"}, "line 1: repo: .* only https"),
        ({"repo": "https://git.example.org/r", "ref": "-x"}, "line 1: repo: '-x' is no name of a branch"),
        ({"repo": "https://git.example.org/r", "lfs": True}, "line 1: repo: lfs: large files are not fetched"),
        ({"workspace": "image:testbed"}, "line 1: workspace: image:testbed is no absolute path"),
    ],
)
def test_what_a_row_wants_is_looked_at_before_anything_runs(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    stage = Stage(tmp_path, rows(1, **more))
    with pytest.raises(ConfigError, match=words) as caught:
        stage.run(lambda _, __: came_to(tmp_path))
    assert "hunter2" not in str(caught.value)
