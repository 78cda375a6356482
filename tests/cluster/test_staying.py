"""The box of a session whose model is done stays for a while: `--keep-box`, as a person uses it."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
import redis

from coordinator.endpoint.scripted import Script, ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.commands import containers, ended, leftovers, started
from tests.cluster.conftest import Start
from tests.cluster.machines import Server
from worker.contract import keys

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

WAIT_S = 120
WORK = "echo left > /tmp/left; echo made > made.txt; sleep 4723 > /dev/null 2>&1 & exit 0"
SCRIPT: Script = [Turn(calls=(ScriptedCall("Bash", {"command": WORK}),)), Turn("all done")]


@contextmanager
def run(
    state_dir: Path, project: Path, *more: str, **variables: str
) -> Iterator[tuple[ScriptedEndpoint, "subprocess.Popen[str]"]]:
    """A session on a copy of the project, whose box is to stay."""
    arguments = ["run", "x", "--workspace", str(project), "--copy", "--json", *more]
    with ScriptedEndpoint(SCRIPT) as endpoint, started(endpoint, state_dir, *arguments, **variables) as process:
        yield endpoint, process


def session_of(process: "subprocess.Popen[str]") -> str:
    """The session's id, once it was said that its box stays."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"the box of (\S+) stays until \d\d:\d\d:\d\d: ", line)
        if found:
            return found[1]
    raise AssertionError("nothing was said of the box")


def by_hand(endpoint: ScriptedEndpoint, state_dir: Path, *words: str) -> str:
    """What a further command prints that succeeds."""
    with started(endpoint, state_dir, *words) as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out


def test_a_person_finds_all_that_is_in_the_box_until_ctrl_c(state_dir: Path, project: Path, tmp_path: Path) -> None:
    with run(state_dir, project, "--keep-box", "10") as (endpoint, process):
        session = session_of(process)
        look = "cat /tmp/left; ps ax | grep -c 'sleep 472[3]'; echo by hand >> made.txt"
        assert by_hand(endpoint, state_dir, "shell", session, "--", "sh", "-c", look) == "left\n1\n"
        by_hand(endpoint, state_dir, "cp", f"{session}:/tmp/left", str(tmp_path / "out"))
        assert (tmp_path / "out").read_text() == "left\n"
        assert by_hand(endpoint, state_dir, "ps").split("\t")[:2] == [session, "idle"]
        assert len(containers(state_dir)) == 1
        process.send_signal(signal.SIGINT)
        result, err = ended(process)
    assert process.returncode == 0, err
    assert (result["status"], result["text"]) == ("completed", "all done")
    assert "+by hand" in result["patch"]
    assert leftovers(state_dir) == []


def test_a_box_goes_when_its_time_is_over(state_dir: Path, project: Path) -> None:
    stay = ("--keep-box", "0.05", "--keep-box-of", "unfinished")
    with run(state_dir, project, *stay, "--max-steps", "1") as (endpoint, process):
        session = session_of(process)
        result, err = ended(process)
        assert (process.returncode, result["status"]) == (1, "stopped"), err
        assert leftovers(state_dir) == []
        again = ("resume", session, "Go on.", "--json", "--max-steps", "5", "--keep-box", "0.05")
        with started(endpoint, state_dir, *again) as resumed:
            assert session_of(resumed) == session
            result, err = ended(resumed)
        assert (resumed.returncode, result["status"]) == (0, "completed"), err
    assert leftovers(state_dir) == []


def test_a_box_of_a_cluster_has_its_place_until_it_goes(
    state_dir: Path, project: Path, server: Server, start: Start
) -> None:
    places = keys.places(start("one").name)
    with redis.Redis.from_url(server.url) as client:
        with run(state_dir, project, "--keep-box", "0.05", SANDHOG_REDIS_URL=server.url) as (_, process):
            session = session_of(process)
            assert client.zrange(places, 0, -1) == [session.encode()]
            assert len(containers(state_dir)) == 1
            result, err = ended(process)
        assert (process.returncode, result["status"]) == (0, "completed"), err
        assert client.zcard(places) == 0
    assert containers(state_dir) == []


def test_only_the_boxes_that_were_meant_stay(state_dir: Path, project: Path) -> None:
    with run(state_dir, project, "--keep-box", "10", "--keep-box-of", "unfinished") as (_, process):
        result, err = ended(process)
    assert (process.returncode, result["status"]) == (0, "completed"), err
    assert "stays" not in err
    assert leftovers(state_dir) == []


def test_a_box_that_ends_by_itself_is_not_waited_for(state_dir: Path, project: Path) -> None:
    with run(state_dir, project, "--keep-box", "10") as (_, process):
        session_of(process)
        (name,) = containers(state_dir)
        client = docker.from_env()
        client.containers.get(name.removeprefix("container ")).remove(force=True)
        client.close()
        result, err = ended(process)
    assert (process.returncode, result["status"]) == (0, "completed"), err
    assert "stays no longer: the box has ended" in err
    assert "+made" in result["patch"]
    assert leftovers(state_dir) == []


@pytest.mark.long
def test_a_node_that_dies_while_a_box_stays_costs_no_work(state_dir: Path, project: Path) -> None:
    with run(state_dir, project, "--keep-box", "10") as (_, process):
        session_of(process)
        (one,) = (state_dir / "runs").iterdir()
        worker = [json.loads(line)["pid"] for line in (one / "processes.jsonl").read_text().splitlines()][1]
        os.kill(worker, signal.SIGKILL)
        result, err = ended(process)
    assert (process.returncode, result["status"]) == (0, "completed"), err
    assert "stays no longer" in err
    assert "+made" in result["patch"]
    assert leftovers(state_dir) == []


def test_a_command_that_is_killed_takes_the_box_with_it(state_dir: Path, project: Path) -> None:
    with run(state_dir, project, "--keep-box", "10") as (_, process):
        session_of(process)
        assert len(containers(state_dir)) == 1
        process.kill()
        process.wait(WAIT_S)
    assert leftovers(state_dir) == []
