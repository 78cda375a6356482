"""The `sandhog` command under a hard hand: signals at any moment, closed streams, full disks, crowds."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.endpoint.scripted import Script, ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.commands import SANDHOG, ended, environment, hung_up, leftovers, running

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

Until = Callable[..., None]


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def boxed(project: Path, *more: str) -> list[str]:
    return ["run", "x", "--workspace", str(project), "--policy", "boxed", "--bind", "--json", *more]


def embedded_pids(state_dir: Path) -> list[int]:
    """Ids of Redis and the workers of the one run, in the order of their start."""
    (run,) = (state_dir / "runs").iterdir()
    return [json.loads(line)["pid"] for line in (run / "processes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("delay_s", [0.2, 0.5, 1.0, 1.6])
def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(state_dir: Path, project: Path, delay_s: float) -> None:
    with running([bash("sleep 30"), Turn("done")], state_dir, *boxed(project)) as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    # In the interpreter's own first moments Ctrl-C is the interpreter's.
    assert process.returncode in (130, -signal.SIGINT), err
    if process.returncode == 130:
        assert "Traceback" not in err
    assert leftovers(state_dir) == []


def test_a_second_ctrl_c_breaks_off_a_node_that_stands_still(state_dir: Path, project: Path, until: Until) -> None:
    with running([bash("touch begun; sleep 60")], state_dir, *boxed(project)) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        worker = embedded_pids(state_dir)[1]
        os.kill(worker, signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGINT)
            until(lambda: "cancelled" in transcript_text(state_dir), "the call was cancelled", 90)
            process.send_signal(signal.SIGINT)
            until(lambda: "session_ended" in transcript_text(state_dir), "the session was broken off", 60)
        finally:
            os.kill(worker, signal.SIGCONT)
        result, err = ended(process)
    assert process.returncode == 130, err
    assert result["status"] == "cancelled"
    assert leftovers(state_dir) == []


def test_a_terminal_that_is_closed_ends_the_session_in_order(state_dir: Path, project: Path) -> None:
    with ScriptedEndpoint([bash("touch begun; sleep 60")]) as endpoint:
        arguments = ["run", "x", "--workspace", str(project), "--policy", "boxed", "--bind"]
        code = hung_up(endpoint, state_dir, (project / "begun").exists, *arguments)
    assert code == 130
    last = json.loads(transcript_text(state_dir).splitlines()[-1])
    assert (last["type"], last["status"]) == ("session_ended", "cancelled")
    assert leftovers(state_dir) == []


def test_what_was_started_with_nohup_outlives_its_terminal(state_dir: Path, project: Path, until: Until) -> None:
    script = [bash("touch begun; while ! test -e go; do sleep 0.05; done"), Turn("all done")]
    with ScriptedEndpoint(script) as endpoint:
        process = subprocess.Popen(
            ["nohup", *SANDHOG, *boxed(project)],
            env=environment(endpoint, state_dir),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until((project / "begun").exists, "the command runs", 90)
            process.send_signal(signal.SIGHUP)
            (project / "go").touch()
            result, err = ended(process)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, result["text"]) == (0, "all done"), err
    assert leftovers(state_dir) == []


def transcript_text(state_dir: Path) -> str:
    return "".join(path.read_text() for path in (state_dir / "sessions").glob("*/*.jsonl"))


def test_a_redis_that_dies_for_good_ends_the_session_with_its_one_object(
    state_dir: Path, project: Path, until: Until
) -> None:
    with running([bash("touch begun; sleep 60")], state_dir, *boxed(project)) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        os.kill(embedded_pids(state_dir)[0], signal.SIGKILL)
        result, err = ended(process)
    assert process.returncode == 1, err
    assert result["status"] == "failed"
    assert "Redis" in result["stop_reason"]
    lines = [json.loads(line) for line in Path(result["transcript"]).read_text().splitlines()]
    (finished,) = [line for line in lines if line["type"] == "call_finished"]
    assert finished["error_code"] == "OUTCOME_UNKNOWN"
    assert lines[-1]["type"] == "session_ended"
    assert "Traceback" not in err
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)])
def test_closed_standard_streams_harm_nothing(state_dir: Path, project: Path, closed: tuple[int, ...]) -> None:
    redirections = " ".join(f"{number}<&-" if number == 0 else f"{number}>&-" for number in closed)
    with ScriptedEndpoint([bash("echo x > made"), Turn("all done")]) as endpoint:
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirections}', "sh", *SANDHOG, *boxed(project)],
            env=environment(endpoint, state_dir, TERM="xterm"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert (project / "made").read_text() == "x\n"
    if 1 not in closed:
        assert json.loads(done.stdout)["text"] == "all done"
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_gone_loses_no_work(state_dir: Path, project: Path, stream: str) -> None:
    with running([bash("echo x > made"), Turn("all done")], state_dir, *boxed(project)) as process:
        getattr(process, stream).close()
        setattr(process, stream, None)
        out, err = process.communicate(timeout=120)
    if stream == "stderr":
        assert process.returncode == 0
        assert json.loads(out)["text"] == "all done"
    else:
        assert process.returncode == 1
        assert "Traceback" not in err
        assert "Exception ignored" not in err
    assert (project / "made").read_text() == "x\n"
    assert leftovers(state_dir) == []


def test_a_state_directory_that_cannot_be_used_is_a_message(state_dir: Path, project: Path) -> None:
    file = state_dir / "file"
    file.write_text("")
    with running([Turn("hi")], state_dir, *boxed(project), SANDHOG_STATE_DIR=str(file)) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "SANDHOG_STATE_DIR" in err
    assert "Traceback" not in err
    assert out == ""


def test_a_relative_state_directory_is_taken_from_where_the_command_was_given(state_dir: Path, project: Path) -> None:
    with ScriptedEndpoint([bash("true"), Turn("done")]) as endpoint:
        done = subprocess.run(
            [*SANDHOG, *boxed(project)],
            env={**environment(endpoint, state_dir, TERM="xterm"), "SANDHOG_STATE_DIR": "here"},
            cwd=state_dir,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["transcript"]).is_relative_to(state_dir / "here")


def test_a_working_directory_that_is_gone_is_a_message(state_dir: Path, tmp_path: Path) -> None:
    with ScriptedEndpoint([Turn("hi")]) as endpoint:
        done = subprocess.run(
            ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *SANDHOG, "run", "x"],
            env=environment(endpoint, state_dir, TERM="xterm"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system that can be filled, for who may mount one; sparse, and large enough for a node to take boxes."""
    image, path = tmp_path / "image", tmp_path / "v"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(1500 * 2**20)
    for argv in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(path)]):
        try:
            done = subprocess.run(argv, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("no file system can be made here")
        if done.returncode != 0:
            pytest.skip("no file system may be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(volume: Path) -> None:
    """Leave no room at all."""
    with (volume / "filler").open("wb", buffering=0) as filler:
        size = 0
        for step in (2**26, 2**20, 2**12):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(filler.fileno(), size, step)
                    size += step


def test_a_full_disk_under_the_state_directory_fails_the_session_and_leaves_nothing(
    volume: Path, project: Path, until: Until
) -> None:
    # Filling takes its time: the command waits for it, so that its end meets a full disk.
    waits = "touch begun; until [ -e filled ]; do sleep 0.05; done; echo x > made"
    with running([bash(waits), bash("true"), Turn("done")], volume, *boxed(project)) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        fill(volume)
        (project / "filled").touch()
        result, err = ended(process)
    assert process.returncode == 1, err
    assert result["status"] == "failed"
    assert "No space left" in result["stop_reason"], result["stop_reason"]
    assert leftovers(volume) == []


def test_ctrl_c_at_a_question_ends_the_session(state_dir: Path, project: Path) -> None:
    typed: list[bytes] = []

    def interrupt(text: str) -> bytes | None:
        if "allow?" not in text or typed:
            return None
        typed.append(b"\x03")
        return typed[0]

    with ScriptedEndpoint([bash("touch never"), Turn("done")]) as endpoint:
        code, shown = at_terminal(
            [*SANDHOG, "run", "x", "--workspace", str(project), "--bind", "--policy", "guarded"],
            environment(endpoint, state_dir, TERM="xterm"),
            interrupt,
        )
    assert code == 130, shown
    assert "Traceback" not in shown
    assert "Fatal Python error" not in shown
    assert not (project / "never").exists()
    assert leftovers(state_dir) == []


def test_bytes_that_are_no_text_are_no_answer(state_dir: Path, project: Path) -> None:
    answers = iter([b"\xff\xfe\n", b"n not now\n", b"\n"])
    asked = 0

    def answer(text: str) -> bytes | None:
        nonlocal asked
        questions = text.count("allow?") + text.count("another message")
        if questions > asked:
            asked = questions
            return next(answers, None)
        return None

    with ScriptedEndpoint([bash("touch never"), Turn("done")]) as endpoint:
        code, shown = at_terminal(
            [*SANDHOG, "run", "x", "--workspace", str(project), "--bind", "--policy", "guarded"],
            environment(endpoint, state_dir, TERM="xterm"),
            answer,
        )
    assert code == 0, shown
    assert not (project / "never").exists()


def at_terminal(
    argv: list[str], variables: dict[str, str], answer: Callable[[str], bytes | None], timeout_s: float = 120.0
) -> tuple[int, str]:
    """Run a program on a terminal of its own; its exit code and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execvpe(argv[0], argv, variables)
        finally:
            os._exit(127)
    shown, deadline = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    chunk = os.read(terminal, 65_536)
                except OSError:
                    break
                if not chunk:
                    break
                shown += chunk
                typed = answer(shown.decode(errors="replace"))
                if typed:
                    os.write(terminal, typed)
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode(errors="replace")


def test_two_commands_at_once_share_a_state_directory(state_dir: Path, project: Path) -> None:
    script: Script = [bash("echo x >> log; sleep 1"), Turn("done")]
    arguments = ["run", "x", "--workspace", str(project), "--json"]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(running(script, state_dir, *arguments)) for _ in range(3)]
        results: list[Any] = [ended(process)[0] for process in processes]
    assert [result["status"] for result in results] == ["completed"] * 3
    assert all("+x" in result["patch"] for result in results)
    assert leftovers(state_dir) == []


def test_a_workspace_that_vanishes_ends_in_order(state_dir: Path, project: Path, until: Until) -> None:
    script = [bash("touch begun; until [ -e gone ]; do sleep 0.05; done"), bash("echo x > made"), Turn("done")]
    with running(script, state_dir, *boxed(project)) as process:
        until(lambda: (project / "begun").exists(), "the command runs", 90)
        elsewhere = project.rename(project.with_name("elsewhere"))
        (elsewhere / "gone").touch()
        result, err = ended(process)
    assert result["status"] == "completed", result
    assert "Traceback" not in err
    assert leftovers(state_dir) == []


def test_a_command_that_is_killed_while_its_worker_refuses_to_start_leaves_no_redis(
    state_dir: Path, project: Path, until: Until
) -> None:
    with running([Turn("done")], state_dir, *boxed(project), DOCKER_HOST="unix:///nowhere") as process:
        until(lambda: bool(list((state_dir / "runs").glob("*/worker.log"))), "the worker begins", 90)
        until(lambda: len(embedded_pids(state_dir)) == 2, "it is written down", 60)
        _, worker_pid = embedded_pids(state_dir)
        os.kill(worker_pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert any(one.startswith("process") for one in leftovers(state_dir)), "worker or Redis is alive"
        os.kill(worker_pid, signal.SIGCONT)
        until(lambda: leftovers(state_dir) == [], "nothing is left", 90)
        until(lambda: not any_redis_below(state_dir), "not even Redis", 60)


def any_redis_below(directory: Path) -> bool:
    """Whether a process has its working directory there."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(directory):
                return True
    return False
