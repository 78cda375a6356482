"""The workspaces of sessions: copies as they are made, and directories that are bound."""

import hashlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.projects import as_root, order_for, project
from worker.beneath import remove_tree
from worker.contract.orders import WorkspaceMode
from worker.errors import WorkspaceRefused
from worker.workspace import agent_uid, prepare

AsOrdinaryUser = Callable[[Callable[[], None]], None]
Nest = Callable[[Path, int], int]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small project of the user."""
    return project(tmp_path / "project")


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
