"""What is special about boxes without isolation; what they share with all others is in `conformance`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.box import Box
from sandbox.errors import BoxLost, LossReason
from sandbox.process_engine import FOLDER_PREFIX, NotAllowed, ProcessEngine
from sandbox.process_marks import processes_of
from sandbox.requests import CallMark, RunAnswer, RunRequest
from sandbox.spec import BoxSpec
from tests.sandbox.conformance.test_pipes import Talk

ROOT = Path(__file__).resolve().parents[2]
Shell = Callable[[Box], Callable[..., RunAnswer]]
Until = Callable[..., None]


@pytest.fixture
def spec(tmp_path: Path) -> BoxSpec:
    return spec_below(tmp_path)


def spec_below(base: Path) -> BoxSpec:
    (base / "workspace").mkdir()
    (base / "spill").mkdir()
    return BoxSpec("any", base / "workspace", base / "spill", os.geteuid(), os.getegid())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ProcessEngine]:
    engine = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True)
    yield engine
    engine.close()


def of(box: Box) -> dict[int, list[int]]:
    return processes_of(int(box.box_id, 16))


def folder_of(box: Box, engine: ProcessEngine) -> Path:
    [record] = [record for record in engine.records() if record.box_id == box.box_id]
    return Path(record.container)


def test_it_runs_only_where_that_was_said(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match=r"isolates nothing.*allow_no_isolation=True"):
        ProcessEngine("n", tmp_path)
    with pytest.raises(NotAllowed):
        ProcessEngine("n", tmp_path, allow_no_isolation="yes")  # type: ignore[arg-type]


def test_a_way_out_is_refused(engine: ProcessEngine, spec: BoxSpec) -> None:
    with pytest.raises(NotAllowed, match="network"):
        engine.start(BoxSpec(**{**vars(spec), "egress": ("http://a.test",)}), "s", 1)
    assert engine.records() == []


def test_no_process_socket_or_directory_is_left(engine: ProcessEngine, spec: BoxSpec, shell: Shell) -> None:
    box = engine.start(spec, "s", 1)
    folder = folder_of(box, engine)
    assert folder.name.startswith(FOLDER_PREFIX)
    shell(box)("setsid sleep 100 & (env -i setsid sh -c 'sleep 101; true' &); sleep 0.1")
    assert (folder / "guest.sock").is_socket()
    assert sum(map(len, of(box).values())) >= 5
    box.close()
    assert of(box) == {}
    assert not folder.exists()


def test_a_start_that_fails_leaves_nothing(
    engine: ProcessEngine, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "t"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no guest here >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(BoxLost, match="no guest here"):
        engine.start(spec, "s", 1)
    assert list(own.iterdir()) == []
    assert engine.records() == []


def test_the_end_of_the_main_process_is_told_and_takes_the_commands_along(
    engine: ProcessEngine, spec: BoxSpec, shell: Shell, until: Until
) -> None:
    box = engine.start(spec, "s", 1)
    shell(box)("sleep 100", background=True)
    own = of(box)[int(box.box_id, 16)]
    for pid in own:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(BoxLost) as lost:
        shell(box)("echo")
    assert lost.value.reason is LossReason.KILLED
    until(lambda: of(box) == {}, "its commands ended with it")


def test_without_heartbeats_it_ends_by_itself_with_its_commands(
    tmp_path: Path, spec: BoxSpec, shell: Shell, until: Until
) -> None:
    engine = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True, heartbeat_s=1000)
    box = engine.start(BoxSpec(**{**vars(spec), "dead_man_s": 1}), "s", 1)
    folder = folder_of(box, engine)
    shell(box)("setsid sleep 100 &")
    assert folder.exists()
    assert of(box) != {}
    until(lambda: of(box) == {}, "nothing of it runs")
    assert not folder.exists()
    engine.close()
    assert engine.sweep() == 1
    assert engine.records() == []


def test_a_command_of_a_link_that_broke_ends_none_of_the_next_one(engine: ProcessEngine, spec: BoxSpec) -> None:
    """Its end is heard of late: what starts commands and reaps them stands still meanwhile."""
    box = engine.start(spec, "s", 1)
    (spawner,) = (
        pid for pid in of(box)[int(box.box_id, 16)] if b"spawner" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    Talk(box, "sleep", "100")
    os.kill(spawner, signal.SIGSTOP)
    assert box._link is not None
    box._link.close()
    talk = Talk(box, "cat")
    os.kill(spawner, signal.SIGCONT)
    talk.say(b"x")
    assert talk.hears(1) == b"x"
    assert talk.pipe is not None
    talk.pipe.end()
    assert talk.ended().exit_code == 0, talk.ends


def test_a_box_is_adopted_with_its_running_command(
    tmp_path: Path, spec: BoxSpec, shell: Shell, mark: Callable[..., CallMark]
) -> None:
    first = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True)
    box = first.start(spec, "s", 1)
    name = shell(box)("echo kept; sleep 100", background=True).background_id
    first.close()
    second = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True)
    [(record, adopted)] = second.adopt()
    assert record.box_id == box.box_id
    assert adopted.background_output("s", str(name), 0, 100).data == b"kept\n"
    assert adopted.run(RunRequest(mark(), command="pwd")).stdout.text().strip() == str(spec.workspace_dir)
    adopted.close()
    assert of(box) == {}
    second.close()


def test_a_record_without_processes_is_swept(tmp_path: Path, spec: BoxSpec) -> None:
    first = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True)
    box = first.start(spec, "s", 1)
    folder = folder_of(box, first)
    first.close()
    for pid in of(box)[int(box.box_id, 16)]:
        os.kill(pid, signal.SIGKILL)
    second = ProcessEngine("n", tmp_path / "records", allow_no_isolation=True)
    assert second.adopt() == []
    assert (second.records(), folder.exists()) == ([], False)
    second.close()


WITHOUT_RIGHTS = """
import sys
from pathlib import Path
from sandbox.process_engine import ProcessEngine
from sandbox.process_marks import processes_of
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec

base = Path(sys.argv[1])
engine = ProcessEngine("n", base / "records", allow_no_isolation=True)
box = engine.start(BoxSpec("any", base / "workspace", base / "spill", 0, 0), "s", 1)
tree = "grep CapEff /proc/self/status; setsid sleep 100 & (env -i setsid sleep 101 &); sleep 102"
answer = box.run(RunRequest(CallMark("k", "d", "s", 1, 0), command=tree, timeout_ms=1000))
print(answer.timed_out, answer.left_running, answer.stdout.text().split()[1], sorted(processes_of(int(box.box_id, 16))))
box.close()
engine.close()
print(processes_of(int(box.box_id, 16)), engine.records())
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="an ordinary user runs all tests here")
def test_no_rights_are_needed(tmp_path: Path) -> None:
    spec_below(tmp_path)
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", WITHOUT_RIGHTS, str(tmp_path)]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": "."},
    )
    first, second = ended.stdout.splitlines() or [ended.stderr, ""]
    assert first.startswith("True () 0000000000000000 [")
    assert second == "{} []"
