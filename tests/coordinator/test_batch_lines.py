"""Results: each line whole or not there, one process a directory, and what is counted over them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.batch.compare import Comparison
from coordinator.batch.lines import RESULTS, RETRIED, CheckLine, ErrorLine, ResultLine, Results, read_lines
from coordinator.batch.manifest import keep_ran_on, masked, write_manifest
from coordinator.batch.predictions import write_predictions
from coordinator.batch.ran_on import RanOn
from coordinator.batch.requests import Defaults
from coordinator.batch.summary import Summary
from coordinator.batch.verdict import infrastructure_failure
from coordinator.endpoint.reply import Usage
from coordinator.errors import ConfigError
from coordinator.session.checks import reward_of
from coordinator.session.model_table import ModelTable
from coordinator.session.result import SessionResult
from coordinator.session.session_events import SessionPlaced
from worker.contract.checks import CheckOutcome


def line(task: str, passed: bool | None = None, **fields: Any) -> ResultLine:
    check = None if passed is None else CheckLine(command="c", exit_code=int(not passed), passed=passed, output="")
    return ResultLine(**{"id": task, "status": "completed", "stop_reason": "done", "check": check, **fields})


def test_lines_are_read_back_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.append(line("a"))
        results.append(line("b", text="ü\n"))
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(b'{"id": "c", "sta')
    assert [one.id for one in read_lines(tmp_path / RESULTS)] == ["a", "b"]
    with Results(tmp_path) as results:
        results.append(line("d"))
    found = list(read_lines(tmp_path / RESULTS))
    assert [one.id for one in found] == ["a", "b", "d"]
    assert found[1].text == "ü\n"


def test_a_torn_first_line_leaves_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_bytes(b"x" * 200_000)
    with Results(tmp_path):
        assert (tmp_path / RESULTS).read_bytes() == b""


def test_one_directory_has_one_writer(tmp_path: Path) -> None:
    with Results(tmp_path), pytest.raises(ConfigError, match="another batch"):
        Results(tmp_path)
    with Results(tmp_path):
        pass


def test_what_is_run_again_is_set_aside(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        for one in (
            line("good", passed=True),
            line("wrong", passed=False),
            line("stopped", status="stopped"),
            line("broken", status="failed", error=ErrorLine(message="no box", tries=3)),
        ):
            results.append(one)
        assert results.set_aside(lambda one: one.is_to_retry("infrastructure")) == 1
        assert results.set_aside(lambda one: one.is_to_retry("failed")) == 1
        assert results.set_aside(lambda one: one.is_to_retry("failed")) == 0
        results.append(line("later"))
        assert [one.id for one in read_lines(results.path)] == ["good", "wrong", "later"]
        assert results.set_aside(lambda one: one.is_to_retry("unsolved")) == 1
    assert [one.id for one in read_lines(tmp_path / RETRIED)] == ["broken", "stopped", "wrong"]
    assert not list(tmp_path.glob(".*"))


def test_what_is_set_aside_was_paid_for_all_the_same(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.append(line("good", cost=0.5))
        results.append(line("bad", cost=0.25, status="failed"))
        results.set_aside(lambda one: one.status == "failed")
        with (tmp_path / RETRIED).open("ab") as torn:
            torn.write(b'{"id": "to')
    with Results(tmp_path) as results:
        results.append_aside(line("broken off", cost=0.125))
        assert results.spent_usd() == pytest.approx(0.875)


def test_what_was_being_set_aside_when_the_batch_was_killed_was_paid_for_once(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.append(line("bad", cost=0.25, status="failed"))
        before = results.path.read_bytes()
        results.set_aside(lambda one: True)
    (tmp_path / RESULTS).write_bytes(before)
    with Results(tmp_path) as results:
        assert results.spent_usd() == pytest.approx(0.25)


FILL = """
import resource, sys, threading
from pathlib import Path
from coordinator.batch.lines import ResultLine, Results
from coordinator.errors import TranscriptError

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
kept = []
with Results(Path(sys.argv[1])) as results:
    def fill(number):
        try:
            for count in range(1_000):
                name = f"{number}-{count}"
                text = "x" * (50 + 1500 * number)
                results.append(ResultLine(id=name, status="completed", stop_reason="done", text=text))
                kept.append(name)
        except TranscriptError:
            pass
    threads = [threading.Thread(target=fill, args=(number,)) for number in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(*kept)
"""


def test_a_line_that_finds_no_room_takes_no_other_one_with_it(tmp_path: Path) -> None:
    for attempt in range(3):
        out = tmp_path / str(attempt)
        done = subprocess.run([sys.executable, "-c", FILL, str(out)], stdout=subprocess.PIPE, check=True, text=True)
        assert sorted(one.id for one in read_lines(out / RESULTS)) == sorted(done.stdout.split())


def test_a_strange_line_is_told(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text('{"foreign": 1}\n')
    with pytest.raises(ConfigError, match="line 1"):
        list(read_lines(tmp_path / RESULTS))


def test_a_summary_counts_runs_and_estimates_pass_at_k() -> None:
    lines = [line("a", passed=number == 0, sample=number + 1, cost=0.5) for number in range(4)]
    lines += [line("b", passed=True, sample=number + 1, cost=0.25) for number in range(4)]
    lines.append(line("c", status="failed", error=ErrorLine(message="x", tries=1)))
    summary = Summary.of(lines)
    assert (summary.runs, summary.completed, summary.broken) == (9, 8, 1)
    assert (summary.checked, summary.passed) == (8, 5)
    assert summary.pass_at(1) == pytest.approx((0.25 + 1.0) / 2)
    assert summary.pass_at(2) == pytest.approx((1 - 3 / 6 + 1.0) / 2)
    assert summary.pass_at(4) == 1.0
    assert summary.pass_at(5) is None
    shown = summary.as_json()
    assert shown["cost_usd"] == pytest.approx(3.0)
    assert shown["infrastructure_error_rate"] == pytest.approx(1 / 9)
    assert ("pass@4", "100.0%") in summary.rows()


def test_two_batches_are_compared_task_by_task() -> None:
    first = [line("same", passed=True), line("gained", passed=False), line("gone", passed=True)]
    second = [line("same", passed=True), line("gained", passed=True), line("new", passed=True)]
    found = Comparison.of(first, second).as_json()
    assert found["changed"] == [{"id": "gained", "solved": [0.0, 1.0], "steps": [0, 0]}]
    assert found["only_in"] == [["gone"], ["new"]]
    assert [total["passed"] for total in found["totals"]] == [2, 3]


def test_predictions_are_those_of_instances_that_came_to_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "patch.diff").write_text("diff\n")
    with Results(tmp_path) as results:
        results.append(line("a", patch="a/patch.diff", model="m"))
        results.append(line("a", patch="a/patch.diff", model="m", sample=2))
        results.append(line("plain", patch="a/patch.diff"))
        results.append(line("b", error=ErrorLine(message="x", tries=1)))
    assert write_predictions(tmp_path, {"a", "b"}) == []
    rows = [json.loads(row) for row in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert rows == [{"instance_id": "a", "model_name_or_path": "m", "model_patch": "diff\n"}]
    assert (tmp_path / "predictions-2.jsonl").exists()


def test_a_prediction_is_the_patch_to_the_byte_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    patches = {"a": b"-one\r\n+two\r\n \rthree\n", "b": b"+caf\xe9\n"}
    with Results(tmp_path) as results:
        for name, content in patches.items():
            (tmp_path / name).write_bytes(content)
            results.append(line(name, patch=name))
    assert write_predictions(tmp_path, {"a", "b"}) == ["b"]
    rows = [json.loads(row) for row in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [row["model_patch"] for row in rows] == [patches["a"].decode(), "+caf\ufffd\n"]


def test_predictions_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("diff\n")
    with Results(tmp_path) as results:
        results.append(line("a", patch="a"))
        results.append(line("a", patch="a", sample=2))
        write_predictions(tmp_path, {"a"})
        results.set_aside(lambda _: True)
    write_predictions(tmp_path, {"a"})
    assert (tmp_path / "predictions.jsonl").read_text() == ""
    assert not (tmp_path / "predictions-2.jsonl").exists()


def result(**fields: Any) -> SessionResult:
    return SessionResult.model_validate(
        {
            "session_id": "s",
            "status": "completed",
            "stop_reason": "done",
            "text": "",
            "steps": 1,
            "calls": 1,
            "usage": Usage(),
            "transcript": "t",
            "patch": "",
            "patch_path": "p",
            "applied": False,
            "workspace": "w",
            "workspace_mode": "copy",
            "workspace_reason": "",
            "notes": [],
            **fields,
        }
    )


def test_a_manifest_holds_no_values_of_variables_and_headers() -> None:
    given = [
        "batch",
        "--env",
        "TOKEN=secret",
        "--env=OTHER=secret",
        "--header",
        "X=secret",
        "--env",
        "NAME",
        "--out",
        "a=b",
    ]
    assert masked(given) == [
        "batch", "--env", "TOKEN=…", "--env=OTHER=…", "--header", "X=…", "--env", "NAME", "--out", "a=b",
    ]  # fmt: skip


def placed(node: str, image_id: str, **versions: str) -> SessionPlaced:
    return SessionPlaced(node=node, incarnation="1", run_id="r", image_id=image_id, versions=versions)


def written_manifest(directory: Path) -> RanOn:
    tasks = directory / "tasks.jsonl"
    tasks.touch()
    defaults = Defaults(image="i", profile="medium")
    return write_manifest(
        directory, tasks=tasks, defaults=defaults, model="m", base_url=None, models=ModelTable(), flags={}
    )


def test_a_manifest_names_what_was_run_on_and_a_batch_that_goes_on_keeps_it(tmp_path: Path) -> None:
    ran = written_manifest(tmp_path)
    assert ran == RanOn()
    for node in ("a", "a", "old"):
        ran.note("i", placed(node, "sha256:1", **({"sandhog": "1"} if node == "a" else {})))
        keep_ran_on(tmp_path, ran)
    again = written_manifest(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_bytes())["ran_on"] == ran.model_dump(), "nothing has run yet"
    again.note("i", placed("a", "sha256:2", sandhog="2"))
    again.note("other", placed("b", "sha256:3", sandhog="2"))
    keep_ran_on(tmp_path, again)
    kept = json.loads((tmp_path / "manifest.json").read_bytes())
    assert kept["ran_on"] == {
        "images": {"i": ["sha256:1", "sha256:2"], "other": ["sha256:3"]},
        "nodes": {"a": [{"sandhog": "1"}, {"sandhog": "2"}], "old": [], "b": [{"sandhog": "2"}]},
    }
    assert kept["image"] == "i", "the rest stays"
    (tmp_path / "manifest.json").write_text('{"image": "of an earlier release"}')
    assert written_manifest(tmp_path) == RanOn()


def test_a_check_that_said_nothing_is_no_verdict() -> None:
    assert infrastructure_failure(result(), has_check=True) is not None
    assert infrastructure_failure(result(status="failed", stop_reason="empty reply"), has_check=True) is None


@pytest.mark.parametrize(
    ("fields", "is_broken"),
    [
        ({}, False),
        ({"status": "stopped", "stop_reason": "max_steps: 3"}, False),
        ({"status": "failed", "stop_reason": "empty reply"}, False),
        ({"status": "failed", "stop_reason": "box: no image"}, True),
        ({"status": "failed", "stop_reason": "source: no such commit"}, False),
        ({"status": "failed", "stop_reason": "redis: away"}, True),
        ({"status": "failed", "stop_reason": "model: No connection to http://x"}, True),
        ({"status": "failed", "stop_reason": "model: http://x answered 503: busy (after 6 tries)"}, True),
        ({"status": "failed", "stop_reason": "model: http://x answered 400: too long"}, False),
        ({"check": CheckOutcome(error="no box", is_infrastructure=True)}, True),
        ({"check": CheckOutcome(exit_code=1)}, False),
        ({"patch_path": None, "notes": ["The node is gone."]}, True),
        ({"patch_path": None, "calls": 0}, False),
    ],
)
def test_the_surroundings_failures_are_told_from_the_tasks_own(fields: dict[str, Any], is_broken: bool) -> None:
    assert (infrastructure_failure(result(**fields)) is not None) == is_broken


@pytest.mark.parametrize(
    ("stdout", "reward"),
    [
        ('log\n{"reward": 0.5}\n', 0.5),
        ('{"reward": 1}\n\n', 1.0),
        ('{"reward": 1}\nlater', None),
        ('{"reward": true}', None),
        ('{"reward": NaN}', None),
        ('{"reward": "1"}', None),
        ("[1]", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_a_reward_is_a_number_in_the_last_line(stdout: str, reward: float | None) -> None:
    assert reward_of(CheckOutcome(exit_code=0, stdout=stdout)) == reward


def test_a_check_that_did_not_end_has_no_reward() -> None:
    assert reward_of(CheckOutcome(stdout='{"reward": 1}', error="It ran out of time.", timed_out=True)) is None
