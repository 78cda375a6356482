import hashlib
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.beneath import remove_tree
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.errors import WorkspaceRefused
from worker.results import finish_bind, finish_copy, release
from worker.setids import strip_set_ids
from worker.workspace import agent_uid, prepare

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")

AsOrdinaryUser = Callable[[Callable[[], None]], None]
Nest = Callable[[Path, int], int]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small project of the user."""
    return project(tmp_path / "project")


def project(root: Path) -> Path:
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("one\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o750)
    (root / "link").symlink_to("src/a.py")
    (root / "dangling").symlink_to("/nowhere")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("src/a.py", "src"):
        os.utime(root / name, ns=(1_000_000_007, 1_000_000_009))
    return root


def order_for(
    source: Path, mode: WorkspaceMode = WorkspaceMode.COPY, session_dir: Path | None = None, as_root: bool = False
) -> BoxOrder:
    return BoxOrder(
        session="s1",
        generation=1,
        session_dir=str(session_dir or source.parent / "sessions" / "s1"),
        image="box",
        workspace=str(source),
        workspace_mode=mode,
        as_root=as_root,
    )


def test_a_copy_is_as_the_source_in_content_modes_links_and_times(source: Path) -> None:
    work = prepare(order_for(source)).directory
    for path in (source, *source.rglob("*")):
        there = work / path.relative_to(source)
        was, now = path.lstat(), there.lstat()
        assert (was.st_mode, was.st_mtime_ns) == (now.st_mode, now.st_mtime_ns), path
        if path.is_symlink():
            assert path.readlink() == there.readlink()
        elif path.is_file():
            assert path.read_bytes() == there.read_bytes()
    assert len(list(work.rglob("*"))) == len(list(source.rglob("*")))


def test_the_base_is_the_same_without_git_folders(source: Path) -> None:
    (source / "src" / ".git").write_text("gitdir: elsewhere\n")
    work = prepare(order_for(source)).directory
    base = work.with_name("base")
    assert (work / "src" / ".git").exists()
    wanted = {p.relative_to(source) for p in source.rglob("*") if ".git" not in p.relative_to(source).parts}
    assert {path.relative_to(base) for path in base.rglob("*")} == wanted


def test_a_second_call_returns_the_same_and_copies_nothing(source: Path) -> None:
    first = prepare(order_for(source))
    (first.directory / "mine").write_text("work of the session")
    remove_tree(source)
    assert prepare(order_for(source)) == first
    assert (first.directory / "mine").exists()


@pytest.mark.parametrize("left", ["work.part", "base.part", "base", "work.part.trash/x"])
def test_a_half_made_copy_is_redone(source: Path, left: str) -> None:
    session_dir = source.parent / "sessions" / "s1"
    (session_dir / left / "garbage").mkdir(parents=True)
    place = prepare(order_for(source))
    assert sorted(path.name for path in place.directory.iterdir()) == sorted(path.name for path in source.iterdir())
    assert not (session_dir / "base" / "garbage").exists()
    assert sorted(path.name for path in session_dir.iterdir()) == ["base", "spill", "work"]


def test_sockets_and_fifos_are_left_out_and_counted(source: Path) -> None:
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(source / "socket"))
        place = prepare(order_for(source))
    assert place.special_files == 2
    assert not (place.directory / "fifo").exists()


def test_set_id_bits_are_not_copied(source: Path) -> None:
    (source / "run").chmod(0o6755)
    assert stat.S_IMODE((prepare(order_for(source)).directory / "run").stat().st_mode) == 0o755


def test_holes_stay_holes(source: Path) -> None:
    with (source / "hole").open("wb") as file:
        file.truncate(1 << 36)
        file.seek(1 << 35)
        file.write(b"x" * 100_000)
    copy = prepare(order_for(source)).directory / "hole"
    assert copy.stat().st_size == 1 << 36
    assert copy.stat().st_blocks * 512 < 10_000_000
    with copy.open("rb") as file:
        file.seek((1 << 35) - 1)
        assert file.read(100_002) == b"\0" + b"x" * 100_000 + b"\0"


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 3_000_000])
def test_files_of_each_size_are_copied_whole(source: Path, size: int) -> None:
    (source / "f").write_bytes(os.urandom(size))
    assert (prepare(order_for(source)).directory / "f").read_bytes() == (source / "f").read_bytes()


@as_root
def test_a_copy_belongs_to_the_sessions_own_user_and_no_link_is_followed(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    (source / "out").symlink_to(outside)
    place = prepare(order_for(source))
    assert place.uid == place.gid == agent_uid("s1")
    assert {path.lstat().st_uid for path in (place.directory, *place.directory.rglob("*"))} == {place.uid}
    assert outside.stat().st_uid == 0


def test_agent_uids_differ_and_fit_a_tar_archive() -> None:
    uids = {agent_uid(f"session-{number}") for number in range(2_000)}
    assert len(uids) > 1_990
    assert min(uids) >= 600_000
    assert max(uids) < 2_097_151


def test_an_ordinary_users_copy_is_its_own(open_path: Path, as_ordinary_user: AsOrdinaryUser) -> None:
    def act() -> None:
        place = prepare(order_for(project(open_path / "project")))
        assert (place.uid, place.gid) == (os.geteuid(), os.getegid())
        assert (place.directory / "link").read_text() == "one\n"

    as_ordinary_user(act)


def test_other_users_cannot_look_into_a_session(source: Path) -> None:
    session_dir = source.parent / "a" / "b" / "s1"
    place = prepare(order_for(source, session_dir=session_dir))
    assert stat.S_IMODE(session_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(session_dir.parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(place.spill_dir.stat().st_mode) == 0o755
    session_dir.chmod(0o755)
    prepare(order_for(source, session_dir=session_dir))
    assert stat.S_IMODE(session_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", list(WorkspaceMode))
@pytest.mark.parametrize(
    ("workspace", "words"),
    [("missing", "does not exist"), ("file", "not a directory"), ("sessions/s1/in", "inside"), ("", "inside"),
     ("loop", "loop of links")],
)  # fmt: skip
def test_what_cannot_be_a_workspace_is_refused_with_words(
    tmp_path: Path, mode: WorkspaceMode, workspace: str, words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "sessions" / "s1" / "in").mkdir(parents=True)
    with pytest.raises(WorkspaceRefused, match=words):
        prepare(order_for(tmp_path / workspace, mode, tmp_path / "sessions" / "s1", as_root=True))
    assert [path.name for path in (tmp_path / "sessions" / "s1").iterdir()] == ["in"]


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRefused, match="relative"):
        prepare(order_for(Path("here"), session_dir=tmp_path / "s1"))


def test_an_unreadable_file_is_refused_and_nothing_half_made_is_left(
    open_path: Path, as_ordinary_user: AsOrdinaryUser
) -> None:
    def act() -> None:
        source = project(open_path / "project")
        (source / "src" / "a.py").chmod(0)
        with pytest.raises(WorkspaceRefused, match=r"cannot be used .* \(a\.py\)"):
            prepare(order_for(source))
        assert [path.name for path in (open_path / "sessions" / "s1").iterdir()] == ["spill"]

    as_ordinary_user(act)


def test_too_deep_a_source_is_refused_and_nothing_half_made_is_left(source: Path, nest: Nest) -> None:
    nest(source, 300)
    with pytest.raises(WorkspaceRefused, match="nested deeper"):
        prepare(order_for(source))
    assert [path.name for path in (source.parent / "sessions" / "s1").iterdir()] == ["spill"]


@as_root
def test_a_full_disk_is_refused_and_nothing_half_made_is_left(source: Path, small_disk: Path) -> None:
    (source / "large").write_bytes(b"x" * 3_000_000)
    with pytest.raises(WorkspaceRefused, match="no room"):
        prepare(order_for(source, session_dir=small_disk / "s1"))
    assert [path.name for path in (small_disk / "s1").iterdir()] == ["spill"]


@as_root
def test_a_bound_directory_gives_its_owner(source: Path) -> None:
    os.chown(source, 1234, 1235)
    place = prepare(order_for(source, WorkspaceMode.BIND))
    assert (place.directory, place.uid, place.gid) == (source, 1234, 1235)
    assert prepare(order_for(source, WorkspaceMode.BIND)) == place


@as_root
def test_roots_directory_is_bound_only_when_asked_for(source: Path) -> None:
    with pytest.raises(WorkspaceRefused, match="--as-root"):
        prepare(order_for(source, WorkspaceMode.BIND))
    place = prepare(order_for(source, WorkspaceMode.BIND, as_root=True))
    assert (place.directory, place.uid, place.gid) == (source, 0, 0)


def test_an_ordinary_worker_binds_its_own_directories_only(open_path: Path, as_ordinary_user: AsOrdinaryUser) -> None:
    def act() -> None:
        mine = project(open_path / "project")
        assert prepare(order_for(mine, WorkspaceMode.BIND)).uid == os.geteuid()
        with pytest.raises(WorkspaceRefused, match="this worker is uid"):
            prepare(order_for(Path("/usr"), WorkspaceMode.BIND, open_path / "s2"))
        with pytest.raises(WorkspaceRefused, match="would run as uid 0"):
            prepare(order_for(mine, WorkspaceMode.BIND, as_root=True))

    as_ordinary_user(act)


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


def test_two_workers_make_one_copy(source: Path) -> None:
    order = order_for(source)
    for number in range(200):
        (source / f"{number}").write_text("x" * number)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                place = prepare(order)
                os._exit(0 if (place.directory / "199").stat().st_size == 199 else 1)
            except BaseException:
                os._exit(2)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0, 0]


def test_a_copy_that_is_killed_is_redone_by_the_next(source: Path) -> None:
    order = order_for(source)
    for number in range(3_000):
        (source / f"{number}").touch()
    part = source.parent / "sessions" / "s1" / "work.part"
    child = os.fork()
    if child == 0:
        prepare(order)
        os._exit(0)
    while not part.exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it could be killed"
    os.kill(child, 9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert part.exists()
    assert len(list(prepare(order).directory.iterdir())) == len(list(source.iterdir()))


def test_the_agents_uid_is_stable() -> None:
    assert agent_uid("s1") == 600_000 + int(hashlib.sha256(b"s1").hexdigest(), 16) % 1_400_000
