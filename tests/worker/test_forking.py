"""Copies of a session's workspace for its forks."""

import os
from pathlib import Path

import pytest

from tests.worker.projects import as_root, order_for, project
from worker.contract.orders import BoxOrder, CopyOrder, CopyOutcome, WorkspaceMode
from worker.forking import copy_for_fork
from worker.own_disk import OwnDisks
from worker.results import finish_copy
from worker.workspace import agent_uid, prepare


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


def ordered(
    box: BoxOrder, target: str = "s2", disks: OwnDisks | None = None, size_bytes: int | None = None
) -> CopyOutcome:
    target_dir = Path(box.session_dir).with_name(target)
    order = CopyOrder(box=box, node="n", incarnation="n-1", target=target, target_dir=str(target_dir))
    return copy_for_fork(order, disks, size_bytes)


def fork_of(box: BoxOrder, target: str = "s2") -> BoxOrder:
    """The order for the box of a fork."""
    return box.model_copy(
        update={
            "session": target,
            "session_dir": str(Path(box.session_dir).with_name(target)),
            "workspace_mode": WorkspaceMode.COPY,
        }
    )


def test_a_fork_finds_the_work_as_it_was_and_its_patch_holds_all_of_it(source: Path) -> None:
    box = order_for(source)
    work = prepare(box).directory
    (work / "src" / "a.py").write_text("two\n")
    (work / "new").write_text("by the first\n")
    (Path(box.session_dir) / "spill" / "1-0.txt").write_text("whole output")
    assert ordered(box).error is None
    (work / "src" / "a.py").write_text("three\n")

    fork = fork_of(box)
    theirs = prepare(fork).directory
    assert theirs == Path(fork.session_dir) / "work"
    assert (theirs / "src" / "a.py").read_text() == "two\n"
    assert (theirs / ".git" / "HEAD").exists()
    assert (Path(fork.session_dir) / "spill" / "1-0.txt").read_text() == "whole output"
    (theirs / "own").write_text("by the fork\n")
    outcome = finish_copy(fork, apply=False)
    assert outcome.changed == ["new", "own", "src/a.py"], "what the directory began with is what it is compared with"
    assert finish_copy(box, apply=False).changed == ["new", "src/a.py"], "the session that was forked goes on as it was"


@as_root
def test_a_forks_files_are_another_users(source: Path) -> None:
    box = order_for(source)
    first = prepare(box)
    assert ordered(box).error is None
    work = Path(box.session_dir).with_name("s2") / "work"
    assert first.uid == agent_uid("s1") != agent_uid("s2") == (work / "src" / "a.py").stat().st_uid
    assert prepare(fork_of(box)).uid == agent_uid("s2")


def test_an_order_that_comes_twice_copies_once(source: Path) -> None:
    box = order_for(source)
    work = prepare(box).directory
    assert ordered(box).error is None
    (work / "later").touch()
    assert ordered(box).error is None
    assert not (Path(box.session_dir).with_name("s2") / "work" / "later").exists()


def test_a_copy_that_is_gone_is_said_to_be_gone_and_leaves_nothing(source: Path) -> None:
    box = order_for(source)
    prepare(box)
    finish_copy(box, apply=False)
    told = ordered(box)
    assert told.error is not None
    assert "gone" in told.error
    assert names(Path(box.session_dir).with_name("s2")) == []


def test_a_bound_directory_is_copied_as_it_is(source: Path) -> None:
    box = order_for(source, WorkspaceMode.BIND, as_root=os.geteuid() == 0 == source.stat().st_uid)
    prepare(box)
    (source / "new").write_text("made in place\n")
    assert ordered(box).error is None
    fork = fork_of(box.model_copy(update={"as_root": False}))
    (Path(fork.session_dir) / "work" / "own").touch()
    assert (Path(fork.session_dir) / "work" / "new").read_text() == "made in place\n"
    assert finish_copy(fork, apply=False).changed == ["own"]
    assert not (source / "own").exists()


@as_root
def test_what_does_not_fit_is_no_fork(source: Path, tmp_path: Path) -> None:
    box = order_for(source)
    work = prepare(box).directory
    (work / "large").write_bytes(os.urandom(6_000_000))
    disks = OwnDisks(tmp_path / "templates")
    try:
        target_dir = Path(box.session_dir).with_name("s2")
        (tmp_path / "probe").mkdir()
        if not disks.make(tmp_path / "probe", 4 * 1024 * 1024):
            pytest.skip("no file systems can be made here")
        disks.remove(tmp_path / "probe")
        told = ordered(box, disks=disks, size_bytes=4 * 1024 * 1024)
        assert told.error is not None
        assert names(target_dir) == []
        assert ordered(box, disks=disks, size_bytes=64 * 1024 * 1024).error is None
        assert names(target_dir) == ["base", "disk", "disk.img", "spill"]
        assert names(target_dir / "disk") == [], "whoever has the fork mounts it"
    finally:
        disks.close()
