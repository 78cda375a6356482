"""What a session's workspace becomes when the session ends: a patch, a copy that goes or is kept, bits taken back."""

import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.projects import as_root, order_for, project
from worker.beneath import remove_tree
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.results import finish_bind, finish_copy, release
from worker.setids import strip_set_ids
from worker.workspace import prepare

AsOrdinaryUser = Callable[[Callable[[], None]], None]
Nest = Callable[[Path, int], int]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small project of the user."""
    return project(tmp_path / "project")


def test_release_removes_copy_and_base_or_keeps_both(source: Path) -> None:
    order = order_for(source)
    place = prepare(order)
    release(order, keep=True)
    assert place.directory.exists()
    release(order, keep=False)
    release(order, keep=False)
    assert [path.name for path in place.directory.parent.iterdir()] == ["spill"]


def test_release_removes_the_copy_before_its_base(source: Path) -> None:
    order = order_for(source)
    place = prepare(order)
    base = place.directory.with_name("base")
    remove_tree(base)
    base.write_text("cannot be removed like a directory")
    with pytest.raises(OSError, match="Not a directory"):
        release(order, keep=False)
    assert not place.directory.exists()


def test_release_never_touches_a_bound_directory(source: Path) -> None:
    order = order_for(source, WorkspaceMode.BIND, as_root=os.geteuid() == 0)
    prepare(order)
    release(order, keep=False)
    assert (source / "run").exists()


def test_a_hostile_tree_is_removed(open_path: Path, as_ordinary_user: AsOrdinaryUser, nest: Nest) -> None:
    def act() -> None:
        outside = project(open_path / "outside")
        order = order_for(outside)
        work = prepare(order).directory
        nest(work, 3_000)
        (work / "out").symlink_to(outside)
        (work / "shut" / "in").mkdir(parents=True)
        (work / "shut" / "in" / "f").touch()
        (work / "shut" / "in").chmod(0)
        (work / "shut").chmod(0)
        work.chmod(0o500)
        release(order, keep=False)
        assert not work.exists()
        assert (outside / "run").exists()

    as_ordinary_user(act)


def test_a_copy_that_a_command_shut_has_its_patch_and_goes(open_path: Path, as_ordinary_user: AsOrdinaryUser) -> None:
    def act() -> None:
        order = order_for(project(open_path / "project"))
        work = prepare(order).directory
        (work / "run").write_text("changed\n")
        for name in ("inner", "also"):
            (work / name / "deep").mkdir(parents=True)
            (work / name / "deep" / "f").touch()
            (work / name).chmod(0)
        work.chmod(0)
        outcome = finish_copy(order, apply=False)
        assert (outcome.error, outcome.changed) == (None, ["run"])
        assert sorted(outcome.notes) == [f"Not in the patch: {name}: cannot be read" for name in ("also", "inner")]
        assert not work.exists()

    as_ordinary_user(act)


def test_a_session_that_changed_nothing_leaves_an_empty_patch(source: Path) -> None:
    order = order_for(source)
    prepare(order)
    outcome = finish_copy(order, apply=True)
    assert outcome.patch_path is not None
    assert Path(outcome.patch_path).read_bytes() == b""
    assert (outcome.changed, outcome.applied, outcome.error) == ([], True, None)


def test_a_session_that_never_started_leaves_an_empty_patch(source: Path) -> None:
    outcome = finish_copy(order_for(source), apply=False)
    assert outcome.patch_path is not None
    assert Path(outcome.patch_path).read_bytes() == b""
    assert outcome.error is None


def changed_session(source: Path) -> BoxOrder:
    order = order_for(source)
    work = prepare(order).directory
    (work / "src" / "a.py").write_text("two\n")
    (work / "new").write_text("new\n")
    (work / "run").unlink()
    return order


def test_finishing_leaves_a_patch_and_no_copy(source: Path) -> None:
    order = changed_session(source)
    outcome = finish_copy(order, apply=False)
    assert outcome.changed == ["new", "run", "src/a.py"]
    assert outcome.patch_path is not None
    assert not outcome.applied
    assert (source / "src" / "a.py").read_text() == "one\n"
    session_dir = source.parent / "sessions" / "s1"
    assert sorted(path.name for path in session_dir.iterdir()) == ["patch.diff", "result", "spill"]
    subprocess.run(
        ["git", "apply", outcome.patch_path], cwd=source, check=True, env={"GIT_DIR": "/nowhere", **os.environ}
    )
    assert (source / "src" / "a.py").read_text() == "two\n"
    assert not (source / "run").exists()


def test_finishing_again_gives_the_same_answer_and_can_still_apply(source: Path) -> None:
    order = changed_session(source)
    first = finish_copy(order, apply=False)
    assert finish_copy(order, apply=False) == first
    assert finish_copy(order, apply=True) == first.model_copy(update={"applied": True})
    assert (source / "new").read_text() == "new\n"


def test_a_finish_that_was_killed_while_it_removed_the_copy_is_completed(source: Path) -> None:
    order = changed_session(source)
    first = finish_copy(order, apply=False, keep=True)
    session_dir = source.parent / "sessions" / "s1"
    (session_dir / "work.trash").mkdir()
    (session_dir / "work").rename(session_dir / "work.trash" / "x")
    assert finish_copy(order, apply=False) == first
    assert sorted(path.name for path in session_dir.iterdir()) == ["patch.diff", "result", "spill"]


def test_a_conflict_is_told_and_the_patch_kept(source: Path) -> None:
    order = changed_session(source)
    (source / "src" / "a.py").write_text("user's\n")
    outcome = finish_copy(order, apply=True)
    assert (outcome.applied, outcome.conflicts) == (False, ["src/a.py"])
    assert not (source / "new").exists()
    assert outcome.patch_path is not None
    assert Path(outcome.patch_path).stat().st_size > 0


def test_what_is_not_in_the_patch_is_noted(source: Path) -> None:
    order = order_for(source)
    os.mkfifo(prepare(order).directory / "fifo")
    assert finish_copy(order, apply=False).notes == ["Not in the patch: fifo: is a socket, FIFO or device"]


def test_a_lost_base_is_told_and_the_copy_kept(source: Path) -> None:
    order = changed_session(source)
    session_dir = source.parent / "sessions" / "s1"
    remove_tree(session_dir / "base")
    outcome = finish_copy(order, apply=True)
    assert outcome.error is not None
    assert outcome.patch_path is None
    assert (session_dir / "work").exists()


def test_an_odd_name_survives_the_way_to_the_outcome(source: Path) -> None:
    order = order_for(source)
    work = prepare(order).directory
    (work / os.fsdecode(b"\xff\n")).write_text("x")
    outcome = finish_copy(order, apply=True)
    assert outcome.model_dump_json()
    assert outcome.changed == ["\\xff\\n"]
    assert (source / os.fsdecode(b"\xff\n")).read_text() == "x"


@as_root
def test_the_patch_belongs_to_who_owns_the_session(source: Path) -> None:
    session_dir = source.parent / "sessions" / "s1"
    session_dir.mkdir(parents=True)
    os.chown(session_dir, 1234, 1235)
    finish_copy(changed_session(source), apply=False)
    for name in ("patch.diff", "result", "result/changes.json"):
        assert (session_dir / name).stat().st_uid == 1234


def test_set_id_bits_of_a_bound_session_are_taken_back(source: Path) -> None:
    (source / "before").touch()
    (source / "before").chmod(0o4755)
    order = order_for(source, WorkspaceMode.BIND, as_root=os.geteuid() == 0)
    time.sleep(0.02)
    prepare(order)
    (source / "src" / "root").touch()
    (source / "src" / "root").chmod(0o6755)
    outcome = finish_bind(order)
    assert outcome.notes == ["Set-id bit removed: src/root"]
    assert outcome.patch_path is None
    assert stat.S_IMODE((source / "src" / "root").stat().st_mode) == 0o755
    assert stat.S_IMODE((source / "before").stat().st_mode) == 0o4755
    assert finish_bind(order).notes == []


def test_set_id_bits_are_found_at_any_depth_and_not_through_links(tmp_path: Path, nest: Nest) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "f").touch()
    (outside / "f").chmod(0o4755)
    (inside / "d").symlink_to(outside)
    (inside / "f").symlink_to(outside / "f")
    os.mkfifo(inside / "fifo")
    (inside / "fifo").chmod(0o4755)
    (inside / "group").mkdir()
    (inside / "group").chmod(0o2755)
    where = nest(inside / "group", 2_000)
    os.close(os.open("f", os.O_CREAT, dir_fd=where))
    os.chmod("f", 0o4755, dir_fd=where)
    (inside / "last").touch()
    (inside / "last").chmod(0o2711)

    stripped = strip_set_ids(inside, 0)

    assert len(stripped) == 2
    assert stripped[0] == "last"
    assert os.stat("f", dir_fd=where).st_mode & 0o7777 == 0o755
    for untouched in (outside / "f", inside / "fifo"):
        assert untouched.stat().st_mode & stat.S_ISUID
