"""`sandhog batch` as a user runs it: a process, real boxes, real git, a scripted endpoint."""

import json
import signal
import subprocess
import tarfile
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from coordinator.batch.lines import ResultLine, Results
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.commands import SECRET, ended, hung_up, leftovers, started
from tests.conftest import Until
from tests.receiving import receiving

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

END_S = 240


def model(messages: list[dict[str, Any]]) -> Turn:
    """Does what the prompt says."""
    prompt = next(message["content"] for message in messages if message["role"] == "user")
    is_first = messages[-1]["role"] != "tool"
    if "answer" in prompt:
        return Turn("done")
    if "loop" in prompt:
        return bash("true")
    if "slow" in prompt and is_first:
        return bash("sleep 600")
    if is_first:
        return bash("echo written >> a.txt; ls -A")
    return Turn("done")


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def batch(
    endpoint: ScriptedEndpoint, state_dir: Path, tasks: Path, *arguments: str, **variables: str
) -> AbstractContextManager["subprocess.Popen[str]"]:
    return started(endpoint, state_dir, "batch", str(tasks), "--json", *arguments, **variables)


def lines(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tasks_of_every_kind_come_to_a_line_a_patch_and_a_verdict(
    state_dir: Path, tmp_path: Path, project: Path, mirror: tuple[str, str]
) -> None:
    url, commit = mirror
    (tmp_path / "secret-of-the-check.txt").write_text("expected\n")
    with tarfile.open(tmp_path / "work.tar.gz", "w:gz") as tar:
        tar.add(project / "b.txt", "inner/b.txt")
    judged = "cat unseen.txt && grep -q written a.txt && echo '{\"reward\": 0.25}'"
    unseen = {"unseen.txt": "secret-of-the-check.txt"}
    tasks = written(
        tmp_path / "tasks.jsonl",
        {"id": "passes", "prompt": "go", "workspace": "project", "check": judged, "check_files": unseen},
        {"id": "odd/../id", "prompt": "go", "samples": 2, "check": {"command": "cat a.txt; exit 3", "fresh": True}},
        {"id": "loops", "prompt": "loop", "limits": {"steps": 2}, "meta": {"mine": [1]}},
        {"id": "packed", "prompt": "go", "workspace": "work.tar.gz", "check": "cat inner/b.txt"},
        {
            "id": "imaged",
            "prompt": "go",
            "workspace": "image:/etc/alternatives",
            "check": "readlink awk; test ! -e /a.txt",
        },
        {"id": "quiet", "prompt": "answer", "workspace": "project", "check": "cat a.txt"},
        {"id": "no-box", "prompt": "go", "profile": "none-such"},
        {
            "instance_id": "org__repo-1",
            "repo": "org/repo",
            "base_commit": commit,
            "problem_statement": "It says first.",
            "patch": "the true solution",
            "check": "git log --oneline | wc -l; cat a.txt",
        },
    )
    out = tmp_path / "out"
    arguments = ["--out", str(out), "-j", "4", "--tries", "1", "--repo-base", url]
    with ScriptedEndpoint(model) as endpoint:
        with batch(endpoint, state_dir, tasks, *arguments, SANDHOG_GIT_HOSTS='["127.0.0.1"]') as process:
            said, err = process.communicate(timeout=END_S)
        assert process.returncode == 1, err
        asked = json.dumps(list(endpoint.requests))
        with batch(endpoint, state_dir, tasks, *arguments) as again:
            repeated, _ = again.communicate(timeout=END_S)
        assert again.returncode == 1
        assert len(json.dumps(list(endpoint.requests))) == len(asked), "nothing is run again"
    kept = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["detail"]) for line in kept] == [("batch", f"9 runs of {tasks} into {out}")]
    found = {(line["id"], line["sample"]): line for line in lines(out)}
    assert len(found) == 9, err
    for name in ("passes", "packed", "imaged", "org__repo-1"):
        line = found[name, 1]
        assert (line["status"], line["error"], line["check"]["passed"]) == ("completed", None, True), line
        assert "+written" in (out / line["patch"]).read_text()
        assert '"session_ended"' in (out / line["transcript"]).read_text()
    assert found["passes", 1]["image_id"].startswith("sha256:")
    assert found["passes", 1]["check"]["reward"] == 0.25
    assert found["passes", 1]["check"]["output"].startswith("expected\n")
    assert (out / "passes" / "patch.diff").exists()
    assert found["quiet", 1]["check"]["passed"], "also of a session that was over before it had a box"
    assert found["packed", 1]["check"]["output"] == "gamma\n"
    assert found["imaged", 1]["check"]["output"].startswith("/usr/bin/"), "an image's links lead where they did"
    assert found["org__repo-1", 1]["check"]["output"] == "1\nfirst\nwritten\n"
    for sample in (1, 2):
        line = found["odd/../id", sample]
        assert (line["check"]["exit_code"], line["check"]["output"]) == (3, "written\n"), "each on a copy of its own"
    assert (found["loops", 1]["status"], found["loops", 1]["meta"]) == ("stopped", {"mine": [1]})
    assert found["no-box", 1]["error"]["kind"] == "infrastructure"
    for unseen_text in ("unseen", "secret-of-the-check", "expected", "grep -q", "true solution", "reward"):
        assert unseen_text not in asked, "the model sees nothing of a check"
    [prediction] = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert prediction["instance_id"] == "org__repo-1"
    assert "+written" in prediction["model_patch"]
    summary = json.loads(said)
    assert (summary["runs"], summary["completed"], summary["infrastructure_errors"]) == (9, 7, 1)
    assert summary["pass_at"]["1"] == pytest.approx(5 / 6)
    assert json.loads(repeated) == summary
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["model"] == "scripted"
    digests = {line["image_id"] for line in lines(out) if line["image_id"]}
    assert {digest for known in manifest["ran_on"]["images"].values() for digest in known} == digests
    ((versions,),) = manifest["ran_on"]["nodes"].values()
    assert {"sandhog", "python", "kernel", "engine", "containerd", "runc"} <= versions.keys()
    assert len(list(out.glob("manifest-*.json"))) == 1
    assert SECRET not in (out / "manifest.json").read_text() + (out / "results.jsonl").read_text() + err
    assert leftovers(state_dir) == []


def test_an_interrupted_batch_ends_in_order_and_goes_on_where_it_was(
    state_dir: Path, tmp_path: Path, until: Until
) -> None:
    rows = [{"id": "quick", "prompt": "go"}, *({"id": f"t{number}", "prompt": "slow"} for number in range(3))]
    tasks, out = written(tmp_path / "tasks.jsonl", *rows), tmp_path / "out"
    with ScriptedEndpoint(model) as endpoint, receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.server_address[1]}/"
        told = {"SANDHOG_WEBHOOK_PRIVATE": '["127.0.0.1"]', "SANDHOG_WEBHOOK_SECRET": "signs-what-is-told"}
        with batch(endpoint, state_dir, tasks, "--out", str(out), "-j", "2", "--webhook", url, **told) as process:
            until(lambda: len(lines(out)) == 1 and len(endpoint.requests) >= 4, "two tasks run", END_S)
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
            process.send_signal(signal.SIGINT)
            said, err = process.communicate(timeout=END_S)
        assert process.returncode == 130, err
        assert json.loads(said)["runs"] == 1
        (_, body), *more = receiver.got
        assert more == []
        assert {"outcome": "interrupted", "left": 3, "runs": 1}.items() <= json.loads(body)["batch"].items()
        assert [line["id"] for line in lines(out)] == ["quick"]
        assert leftovers(state_dir) == []
        first = lines(out)[0]
        rows[1:] = [{**row, "prompt": "go"} for row in rows[1:]]
        written(tasks, *rows)
        with batch(endpoint, state_dir, tasks, "--out", str(out), "-j", "3") as process:
            _, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err
    assert lines(out)[0] == first
    assert sorted(line["id"] for line in lines(out)) == ["quick", "t0", "t1", "t2"]
    assert "4/4" in err
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("how", ["its terminal is closed", "it is killed"])
def test_a_batch_that_lost_its_terminal_or_its_life_leaves_no_box_and_goes_on(
    state_dir: Path, tmp_path: Path, until: Until, how: str
) -> None:
    rows = [{"id": "quick", "prompt": "go"}, *({"id": f"t{number}", "prompt": "slow"} for number in range(2))]
    tasks, out = written(tmp_path / "tasks.jsonl", *rows), tmp_path / "out"
    arguments = ("--out", str(out), "-j", "2")
    with ScriptedEndpoint(model) as endpoint:

        def is_under_way() -> bool:
            return len(lines(out)) == 1 and len(endpoint.requests) >= 4

        if how == "it is killed":
            with batch(endpoint, state_dir, tasks, *arguments) as process:
                until(is_under_way, "two tasks run", END_S)
                process.kill()
            # Its worker ends by itself, and takes the boxes with it.
            until(lambda: leftovers(state_dir) == [], "nothing is left", END_S)
        else:
            assert hung_up(endpoint, state_dir, is_under_way, "batch", str(tasks), *arguments) == 130
            assert leftovers(state_dir) == []
        first = lines(out)
        assert [line["id"] for line in first] == ["quick"]
        written(tasks, *({**row, "prompt": "go"} for row in rows))
        with batch(endpoint, state_dir, tasks, *arguments) as process:
            _, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err
    assert lines(out)[:1] == first
    assert sorted(line["id"] for line in lines(out)) == ["quick", "t0", "t1"]
    assert leftovers(state_dir) == []


def test_a_run_is_forked_while_it_runs(state_dir: Path, tmp_path: Path, until: Until) -> None:
    tasks, out = written(tmp_path / "tasks.jsonl", {"id": "a", "prompt": "go"}), tmp_path / "out"
    asks_again, is_forked = threading.Event(), threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        if any("and now?" in str(message["content"]) for message in messages):
            return Turn("forked") if messages[-1]["role"] == "tool" else bash("cat a.txt")
        if messages[-1]["role"] != "tool":
            return bash("echo written >> a.txt")
        asks_again.set()
        is_forked.wait(END_S)
        return Turn("done")

    with ScriptedEndpoint(script) as endpoint:
        with batch(endpoint, state_dir, tasks, "--out", str(out)) as process:
            assert asks_again.wait(END_S)
            (session,) = (path.name for path in (state_dir / "sessions").iterdir())
            with started(endpoint, state_dir, "fork", session, "and now?", "--json") as fork:
                result, err = ended(fork)
            assert (result["status"], result["text"]) == ("completed", "forked"), err
            assert "+written" in result["patch"]
            is_forked.set()
            _, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err
    assert [line["status"] for line in lines(out)] == ["completed"]
    assert leftovers(state_dir) == []


def test_what_a_task_is_to_work_on_and_is_not_there_is_its_own_failure(
    state_dir: Path, tmp_path: Path, mirror: tuple[str, str]
) -> None:
    url, _ = mirror
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as tar:
        tar.add(__file__, "a.py")
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "cut.tar.gz").read_bytes()[:-200])
    tasks = written(
        tmp_path / "tasks.jsonl",
        {"id": "ref", "prompt": "go", "repo": f"{url}/org/repo", "ref": "no-such-branch"},
        {"id": "commit", "prompt": "go", "repo": f"{url}/org/repo", "ref": "deadbeef" * 5},
        {"id": "path", "prompt": "go", "workspace": "image:/no/such"},
        {"id": "cut", "prompt": "go", "workspace": "cut.tar.gz"},
    )
    out = tmp_path / "out"
    with ScriptedEndpoint(model) as endpoint:
        arguments = ["--out", str(out), "-j", "2"]
        with batch(endpoint, state_dir, tasks, *arguments, SANDHOG_GIT_HOSTS='["127.0.0.1"]') as process:
            _, err = process.communicate(timeout=END_S)
    assert process.returncode == 1, err
    assert len(lines(out)) == 4
    for line in lines(out):
        assert (line["status"], line["error"]) == ("failed", None), line
        assert line["stop_reason"].startswith("source: "), line


def test_more_samples_than_are_asked_for_now_are_no_fault(state_dir: Path, tmp_path: Path) -> None:
    tasks = written(tmp_path / "tasks.jsonl", {"id": "a", "prompt": "x"})
    with Results(tmp_path / "out") as results:
        for sample in (1, 2):
            results.append(ResultLine(id="a", sample=sample, status="completed", stop_reason="done"))
    arguments = ("--out", str(tmp_path / "out"))
    with ScriptedEndpoint(model) as endpoint, batch(endpoint, state_dir, tasks, *arguments) as process:
        out, err = process.communicate(timeout=END_S)
    assert process.returncode == 0, out + err


def test_what_failed_stays_where_its_task_is_not_asked_for(state_dir: Path, tmp_path: Path) -> None:
    tasks, out = written(tmp_path / "tasks.jsonl", {"id": "a", "prompt": "x"}), tmp_path / "out"
    with Results(out) as results:
        results.append(ResultLine(id="a", status="completed", stop_reason="done"))
        results.append(ResultLine(id="another", status="failed", stop_reason="empty reply"))
        results.append(ResultLine(id="a", sample=2, status="stopped", stop_reason="max_steps"))
    before = lines(out)
    arguments = ("--out", str(out), "--retry", "failed")
    with ScriptedEndpoint(model) as endpoint, batch(endpoint, state_dir, tasks, *arguments) as process:
        _, err = process.communicate(timeout=END_S)
    assert process.returncode == 0, err
    assert "0 finished runs are run again" in err
    assert lines(out) == before


def test_bad_tasks_run_nothing_and_are_all_named(state_dir: Path, tmp_path: Path) -> None:
    tasks = written(tmp_path / "tasks.jsonl", {"id": "a", "prompt": "x", "worksapce": "."}, {"id": "b"})
    with ScriptedEndpoint(model) as endpoint:
        with batch(endpoint, state_dir, tasks, "--out", str(tmp_path / "out")) as process:
            out, err = process.communicate(timeout=END_S)
        assert process.returncode == 2
        assert out == ""
        assert "line 1: worksapce" in err
        assert "line 2: prompt: it is missing" in err
        assert not endpoint.requests
    assert not (tmp_path / "out").exists()
