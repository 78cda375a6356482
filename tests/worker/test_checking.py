"""Checks that judge a workspace, on real boxes."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandbox.engine import DockerEngine, EngineSettings
from sandbox.requests import CallMark, RunRequest
from worker.boxes import Boxes
from worker.contract.checks import CHECK_FILES_DIR, Check
from worker.contract.extras import FileIn
from worker.contract.orders import BoxOrder, FinishOrder, FinishOutcome, WorkspaceMode

pytestmark = pytest.mark.docker

NODE = f"check-tests-{os.getpid()}"


@pytest.fixture(scope="module")
def boxes(guest_folder: Path, proofs_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    boxes = Boxes(DockerEngine(EngineSettings(NODE, guest_folder, tmp_path_factory.mktemp("records"), proofs_dir)), 120)
    yield boxes
    boxes.close()
    client = docker.APIClient(version="auto")
    assert not client.containers(all=True, filters={"label": f"sandhog.node={NODE}"})
    client.close()


class Session:
    """One session on a copy of a small project."""

    def __init__(self, boxes: Boxes, base: Path) -> None:
        self.boxes = boxes
        self.dir = base / "session"
        project = base / "project"
        for path in (self.dir, project):
            path.mkdir(parents=True)
        (project / "test_it.py").write_text("original\n")
        self.order = BoxOrder(
            session=f"c-{uuid.uuid4().hex[:8]}",
            generation=1,
            session_dir=str(self.dir),
            image="sandhog-box:latest",
            workspace=str(project),
            workspace_mode=WorkspaceMode.COPY,
        )

    def run(self, command: str, *, background: bool = False) -> str:
        box = self.boxes.box_for(self.order)
        mark = CallMark(key=uuid.uuid4().hex, digest="", session=self.order.session, generation=1, step=0)
        return box.run(RunRequest(mark, command=command, background=background)).stdout.text()

    def finish(self, check: Check, **files: str) -> FinishOutcome:
        (self.dir / CHECK_FILES_DIR).mkdir(exist_ok=True)
        for number, content in enumerate(files.values()):
            (self.dir / CHECK_FILES_DIR / str(number)).write_text(content)
        order = FinishOrder(box=self.order, node=NODE, incarnation="i", check=check)
        return self.boxes.finish(order)


@pytest.fixture
def session(boxes: Boxes, tmp_path: Path) -> Iterator[Callable[[], Session]]:
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(boxes, tmp_path / str(len(made))))
        return made[-1]

    yield make
    for each in made:
        boxes.finish(FinishOrder(box=each.order, node=NODE, incarnation="i"))


def test_a_check_judges_what_the_session_left_and_is_no_part_of_its_patch(session: Callable[[], Session]) -> None:
    one = session()
    one.run("echo cheat > test_it.py; echo work > done.txt; echo here > /tmp/in-the-box; cd /tmp")
    one.run("while sleep 0.01; do echo cheat > test_it.py; date > later.txt; done", background=True)
    one.run("until test -s later.txt; do sleep 0.01; done")
    command = "pwd; id -u; cat test_it.py deep/hidden.txt /tmp/in-the-box; ls > made; sleep 0.2; cat test_it.py"
    files = (FileIn(path="test_it.py"), FileIn(path="deep/hidden.txt"))
    check = Check(command=f"{command}; echo err >&2; exit 3", files=files)
    outcome = one.finish(check, test="the true test\n", hidden="hidden\n")
    assert outcome.check is not None
    assert outcome.check.exit_code == 3
    assert not outcome.check.passed
    lines = outcome.check.stdout.splitlines()
    assert lines[0] == "/workspace", "a check begins where a session does"
    assert lines[1] != "0"
    assert lines[2:5] == ["the true test", "hidden", "here"]
    assert lines[-1] == "the true test", "nothing of the session's runs any more"
    assert outcome.check.stderr == "err\n"
    assert outcome.patch_path is not None
    patch = Path(outcome.patch_path).read_text()
    assert "+work" in patch
    for word in ("hidden", "the true test", "b/made"):
        assert word not in patch
    assert not (one.dir / "work").exists()
    again = one.finish(check)
    assert again.check == outcome.check, "asked for again, it is not run again"


def test_a_fresh_box_has_nothing_of_the_session_but_its_workspace(session: Callable[[], Session]) -> None:
    one = session()
    one.run("echo here > /tmp/in-the-box; echo 'echo hooked' > ~/.bashrc; echo work > done.txt")
    outcome = one.finish(Check(command="ls -A /tmp; ls ~/.bashrc 2>/dev/null; cat done.txt", is_fresh=True))
    assert outcome.check is not None
    assert (outcome.check.stdout, outcome.check.passed) == ("work\n", True)


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_workspace_that_the_session_shut_is_judged_all_the_same(
    session: Callable[[], Session], is_fresh: bool
) -> None:
    one = session()
    one.run("echo work > done.txt; mkdir -p shut/in; chmod 000 shut /workspace")
    outcome = one.finish(Check(command="pwd; cat done.txt; ls shut", is_fresh=is_fresh))
    assert outcome.check is not None
    assert (outcome.check.stdout, outcome.check.error) == ("/workspace\nwork\n", None)
    assert "shut" in outcome.check.stderr, "what is inside stays as the session left it"
    assert outcome.changed == ["done.txt"]
    assert not (one.dir / "work").exists()


def test_a_check_has_a_time_limit_of_its_own(session: Callable[[], Session]) -> None:
    one = session()
    one.run("true")
    outcome = one.finish(Check(command="echo begun; sleep 100", timeout_s=0.5))
    assert outcome.check is not None
    assert (outcome.check.timed_out, outcome.check.passed, outcome.check.stdout) == (True, False, "begun\n")
    assert not outcome.check.is_infrastructure


def test_a_command_that_is_none_is_told_as_that(session: Callable[[], Session]) -> None:
    outcome = session().finish(Check(command="echo \0"))
    assert outcome.check is not None
    assert outcome.check.error is not None
    assert outcome.check.error.startswith("It could not be started: ")
    assert not outcome.check.passed


def test_a_workspace_in_which_a_checks_file_has_no_place_fails_the_check(session: Callable[[], Session]) -> None:
    one = session()
    one.run("ln -s /tmp tests")
    outcome = one.finish(Check(command="true", files=(FileIn(path="tests/hidden.py"),)), hidden="x")
    assert outcome.check is not None
    assert outcome.check.error is not None
    assert "tests/hidden.py" in outcome.check.error
    assert not outcome.check.is_infrastructure, "it is the session's own doing"


def test_a_session_that_never_had_a_box_gets_one_for_its_check(session: Callable[[], Session]) -> None:
    outcome = session().finish(Check(command="cat test_it.py"))
    assert outcome.check is not None
    assert outcome.check.stdout == "original\n"


def test_files_of_the_check_that_are_missing_are_no_fault_of_the_session(session: Callable[[], Session]) -> None:
    outcome = session().finish(Check(command="true", files=(FileIn(path="a"),)))
    assert outcome.check is not None
    assert outcome.check.is_infrastructure
