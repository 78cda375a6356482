"""The `sandhog` command as a user runs it: a process with its own environment, streams and signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.commands import SANDHOG, SECRET, ended, leftovers, running

pytestmark = pytest.mark.docker


def test_json_is_one_object_and_everything_else_goes_to_stderr(state_dir: Path, project: Path) -> None:
    script = [Turn("look", calls=(ScriptedCall("Read", {"path": "a.txt"}),)), Turn("alpha it is")]
    with running(script, state_dir, "run", "what is in a.txt?", "--workspace", str(project), "--json") as process:
        result, err = ended(process)
    assert process.returncode == 0, err
    assert result["status"] == "completed"
    assert result["text"] == "alpha it is"
    assert (result["steps"], result["calls"]) == (2, 1)
    assert result["workspace_mode"] == "copy"
    assert "no terminal" in result["workspace_reason"]
    assert result["patch"] == ""
    assert result["usage"]["total_tokens"] > 0
    assert "Read" in err
    transcript = Path(result["transcript"]).read_text()
    assert SECRET not in transcript + err
    assert leftovers(state_dir) == []


def test_without_a_name_the_endpoints_only_model_is_taken(state_dir: Path, project: Path) -> None:
    arguments = ["run", "hello", "--workspace", str(project), "--json"]
    with running([Turn("hi")], state_dir, *arguments, SANDHOG_MODEL="") as process:
        result, err = ended(process)
    assert result["status"] == "completed", err
    assert "scripted" in err


def test_no_secret_of_ours_is_visible_in_a_box(state_dir: Path, project: Path) -> None:
    look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ls -la / /workspace /run /spill; cat /proc/mounts"
    script = [Turn(calls=(ScriptedCall("Bash", {"command": look}),)), Turn("done")]
    with running(script, state_dir, "run", "look", "--workspace", str(project), "--json") as process:
        result, _ = ended(process)
    transcript = Path(result["transcript"]).read_text()
    seen = next(line for line in transcript.splitlines() if '"call_finished"' in line)
    assert "GIT_TERMINAL_PROMPT=0" in seen, "the environment was listed"
    for secret in (SECRET, "OPENAI", "SANDHOG_REDIS", "redis.sock"):
        assert secret not in seen


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["run", "x", "--workspace", "/no/such/dir"], {}, "no such directory"),
        (["run", "   "], {}, "prompt is empty"),
        (["run", "x", "--max-steps", "0"], {}, "max-steps"),
        (["run", "x", "--policy", "lax"], {}, "lax"),
        (["run", "x", "--bind", "--copy"], {}, "exclude"),
        (["run", "x"], {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": ""}, "OPENAI_API_KEY"),
        (["run", "x"], {"OPENAI_BASE_URL": "ftp://somewhere"}, "http"),
        (["apply", "20000101-000000-00000000"], {}, "no session"),
        (["apply", "../../etc"], {}, "no session"),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(
    state_dir: Path, tmp_path: Path, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    if "--workspace" not in arguments and arguments[0] == "run":
        arguments = [*arguments, "--workspace", str(tmp_path)]
    with running([Turn("hi")], state_dir, *arguments, **variables) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert leftovers(state_dir) == []


def test_a_root_owned_directory_is_bound_only_as_root(state_dir: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a root-owned directory of its own")
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "id -u; echo x > made"}),)), Turn("done")]
    with running(script, state_dir, "run", "x", "--workspace", str(tmp_path), "--bind", "--json") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "--as-root" in err
    arguments = ["run", "x", "--workspace", str(tmp_path), "--as-root", "--policy", "boxed", "--json"]
    with running(script, state_dir, *arguments) as process:
        result, err = ended(process)
    assert process.returncode == 0, err
    assert result["workspace_mode"] == "bind"
    assert (tmp_path / "made").read_text() == "x\n"


def test_guarded_without_anybody_to_ask_denies_what_is_not_reading(state_dir: Path, project: Path) -> None:
    calls = (ScriptedCall("Bash", {"command": "cat a.txt"}), ScriptedCall("Bash", {"command": "touch made"}))
    script = [Turn(calls=calls), Turn("done")]
    arguments = ["run", "x", "--workspace", str(project), "--policy", "guarded", "--json"]
    with running(script, state_dir, *arguments) as process:
        result, err = ended(process)
    assert result["workspace_mode"] == "bind", err
    answers = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
    finished = {one["index"]: one for one in answers if one["type"] == "call_finished"}
    assert finished[0]["status"] == "success"
    assert finished[1]["error_code"] == "PERMISSION_DENIED"
    assert not (project / "made").exists()


def test_a_stopped_session_exits_1(state_dir: Path, project: Path) -> None:
    turn = Turn(calls=(ScriptedCall("Read", {"path": "a.txt"}),))
    arguments = ["run", "x", "--workspace", str(project), "--max-steps", "1", "--json"]
    with running(lambda _: turn, state_dir, *arguments) as process:
        result, _ = ended(process)
    assert process.returncode == 1
    assert result["status"] == "stopped"


def test_an_endpoint_that_refuses_fails_the_session_with_its_own_words(state_dir: Path, project: Path) -> None:
    turn = Turn(status=401, error={"message": "this key is for another house", "code": "invalid_api_key"})
    with running(lambda _: turn, state_dir, "run", "x", "--workspace", str(project), "--json") as process:
        result, _ = ended(process)
    assert process.returncode == 1
    assert result["status"] == "failed"
    assert "this key is for another house" in result["stop_reason"]
    assert leftovers(state_dir) == []


def test_ctrl_c_ends_the_running_command_and_leaves_a_valid_transcript(
    state_dir: Path, project: Path, until: Callable[..., None]
) -> None:
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "touch begun; echo so far; sleep 99"}),)), Turn("done")]
    arguments = ["run", "x", "--workspace", str(project), "--policy", "boxed", "--bind", "--json"]
    with running(script, state_dir, *arguments) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        process.send_signal(signal.SIGINT)
        result, err = ended(process)
    assert process.returncode == 130, err
    assert result["status"] == "cancelled"
    lines = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
    finished = next(line for line in lines if line["type"] == "call_finished")
    assert finished["error_code"] == "CANCELLED"
    assert "so far" in finished["answer"]
    assert lines[-1]["type"] == "session_ended"
    assert leftovers(state_dir) == []


def test_a_killed_command_takes_its_boxes_worker_and_redis_with_it(
    state_dir: Path, project: Path, until: Callable[..., None]
) -> None:
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "touch begun; sleep 99"}),)), Turn("done")]
    arguments = ["run", "x", "--workspace", str(project), "--policy", "boxed", "--bind", "--json"]
    with running(script, state_dir, *arguments) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        assert any(one.startswith("container") for one in leftovers(state_dir)), "it was alive"
        process.kill()
        process.wait()
        until(lambda: leftovers(state_dir) == [], "nothing is left", 90)


def test_with_command_and_worker_killed_the_box_ends_itself_and_the_next_command_sweeps(
    state_dir: Path, project: Path, until: Callable[..., None]
) -> None:
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "touch begun; sleep 99"}),)), Turn("done")]
    arguments = ["run", "x", "--workspace", str(project), "--policy", "boxed", "--bind", "--json"]
    with running(script, state_dir, *arguments, SANDHOG_DEAD_MAN_S="10") as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        (run,) = (state_dir / "runs").iterdir()
        pids = [json.loads(line)["pid"] for line in (run / "processes.jsonl").read_text().splitlines()]
        process.kill()
        os.kill(pids[1], signal.SIGKILL)
        process.wait()
    until(lambda: not any(one.startswith("container") for one in leftovers(state_dir)), "the box ended itself", 90)
    assert any(one.startswith("process") or one.startswith("run") for one in leftovers(state_dir)), "Redis is left"
    with running([Turn("hi")], state_dir, "run", "x", "--workspace", str(project), "--json") as process:
        ended(process)
    assert leftovers(state_dir) == []


def test_the_demo_mends_its_project(state_dir: Path) -> None:
    with running([], state_dir, "demo", "--json") as process:
        result, err = ended(process)
    assert process.returncode == 0, err
    assert "scripted" in err
    assert "14 passed" in result["text"]
    assert "ljust" in result["patch"]
    assert leftovers(state_dir) == []


def test_a_patch_is_applied_afterwards_and_refused_where_the_file_has_changed(state_dir: Path, project: Path) -> None:
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "echo more >> a.txt"}),)), Turn("done")]
    with running(script, state_dir, "run", "x", "--workspace", str(project), "--json") as process:
        result, _ = ended(process)
    kept = shutil.copytree(project, project.with_name("kept"))
    (project / "a.txt").write_text("changed meanwhile\n")
    with running([], state_dir, "apply", result["session_id"], "--yes") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a.txt" in err
    assert (project / "a.txt").read_text() == "changed meanwhile\n"
    shutil.rmtree(project)
    kept.rename(project)
    with running([], state_dir, "apply", result["session_id"], "--yes") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "+more" in out
    assert (project / "a.txt").read_text() == "alpha\nbeta\nmore\n"
    done = [json.loads(line)["action"] for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    assert done == ["run", "apply", "apply"]


def system_python() -> str | None:
    """An interpreter of this version that every user may run; None if there is none."""
    python = Path("/usr/bin/python3")
    asked = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    version = (
        subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if python.exists() else ""
    )
    return str(python) if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else None


def test_a_user_of_the_docker_group_gets_a_full_run(state_dir: Path, project: Path) -> None:
    python, socket = system_python(), Path("/var/run/docker.sock")
    if os.geteuid() != 0 or python is None or not socket.exists():
        pytest.skip("needs root, to become an ordinary user, and a system Python of this version")
    if any(not folder.stat().st_mode & 0o001 for folder in Path(sysconfig.get_path("purelib")).parents):
        pytest.skip("this checkout lies in a directory that other users may not enter")
    owner = project.stat()
    # Not below pytest's directories, which others may not enter; and a state directory as it is at first, so that the
    # guest folder is made and the image's limits are tried.
    state_dir.chmod(0o755)
    home, project = state_dir / "home", Path(shutil.copytree(project, state_dir / "project"))
    home.mkdir()
    for path in (home, project, *project.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    calls = (ScriptedCall("Bash", {"command": "id -u; echo x > made"}), ScriptedCall("Read", {"path": "a.txt"}))
    environment = {
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), "/usr/bin", "/bin"]),
        "HOME": str(home),
        "SANDHOG_STATE_DIR": str(home),
        "SANDHOG_MODEL": "scripted",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), sysconfig.get_path("purelib")]),
    }
    for arguments, mode in (([], "copy"), (["--bind", "--policy", "boxed"], "bind")):
        with ScriptedEndpoint([Turn(calls=calls), Turn("done")]) as endpoint:
            done = subprocess.run(
                [python, "-c", SANDHOG[2], "run", "x", "--workspace", str(project), "--json", *arguments],
                env={**environment, "OPENAI_BASE_URL": endpoint.base_url},
                user=owner.st_uid,
                group=owner.st_gid,
                extra_groups=[socket.stat().st_gid],
                cwd="/",
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["workspace_mode"] == mode
        lines = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
        finished = {line["index"]: json.loads(line["answer"]) for line in lines if line["type"] == "call_finished"}
        assert finished[0]["text"].strip() == str(owner.st_uid), "commands have the user's own uid"
        assert finished[1]["status"] == "success"
        assert (project / "made").exists() == (mode == "bind")
    assert (project / "made").stat().st_uid == owner.st_uid
    assert leftovers(home) == []
