import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.beneath import EXECUTABLE_MODE, FILE_MODE, LINK_MODE
from worker.changes import MAX_NAMED, ChangeKind, Changes, changes_between, shown


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    return directory


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def kinds(changes: Changes) -> dict[str, ChangeKind]:
    return {change.path: change.kind for change in changes.items}


def in_both(base: Path, work: Path, name: str, content: str = "same\n") -> None:
    for root in (base, work):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def test_each_kind_of_change_is_told(base: Path, work: Path) -> None:
    for name in ("same", "modified", "mode", "deleted", "deep/er/file"):
        in_both(base, work, name)
    (work / "modified").write_text("else\n")
    (work / "mode").chmod(0o755)
    (work / "deleted").unlink()
    (work / "new").write_text("new\n")
    (work / "link").symlink_to("same")

    changes = changes_between(base, work)

    assert kinds(changes) == {
        "deleted": ChangeKind.DELETED,
        "link": ChangeKind.ADDED,
        "mode": ChangeKind.MODE,
        "modified": ChangeKind.MODIFIED,
        "new": ChangeKind.ADDED,
    }
    assert changes.left_out == ()
    modes = {change.path: (change.old_mode, change.new_mode) for change in changes.items}
    assert modes["mode"] == (FILE_MODE, EXECUTABLE_MODE)
    assert modes["link"] == (None, LINK_MODE)
    assert modes["deleted"] == (FILE_MODE, None)


def test_a_change_that_hides_behind_size_and_time_is_found(base: Path, work: Path) -> None:
    in_both(base, work, "f", "1234")
    times = (base / "f").stat()
    (work / "f").write_text("4321")
    for root in (base, work):
        os.utime(root / "f", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert kinds(changes_between(base, work)) == {"f": ChangeKind.MODIFIED}


def test_a_link_with_a_files_content_is_a_change(base: Path, work: Path) -> None:
    (base / "f").write_text("target")
    (work / "f").symlink_to("target")
    assert kinds(changes_between(base, work)) == {"f": ChangeKind.MODIFIED}


@pytest.mark.parametrize("name", [".git/config", "sub/.git/hooks/post-commit", ".GIT/config"])
def test_git_folders_are_never_compared(base: Path, work: Path, name: str) -> None:
    in_both(base, work, name)
    (work / name).write_text("[core]\n\tfsmonitor = touch /tmp/ran\n")
    (work / name).with_name("more").write_text("x")
    assert changes_between(base, work) == Changes(())


def test_planted_links_lead_nowhere(base: Path, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    in_both(base, work, "d/secret")
    (work / "d" / "secret").unlink()
    (work / "d").rmdir()
    (work / "d").symlink_to(outside)
    (work / "loop").symlink_to("loop")
    changes = changes_between(base, work)
    assert kinds(changes) == {
        "d": ChangeKind.ADDED,
        "d/secret": ChangeKind.DELETED,
        "loop": ChangeKind.ADDED,
    }


@pytest.mark.timeout(10)
def test_what_is_no_file_is_named_and_never_opened(base: Path, work: Path) -> None:
    in_both(base, work, "was-a-file")
    (work / "was-a-file").unlink()
    os.mkfifo(work / "was-a-file")
    os.mkfifo(work / "fifo")
    (work / "plain").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(work / "socket"))
        changes = changes_between(base, work)
    assert kinds(changes) == {"plain": ChangeKind.ADDED}
    assert sorted(note.split(":")[0] for note in changes.left_out) == ["fifo", "socket", "was-a-file"]


def test_added_files_that_gitignore_names_are_left_out_and_known_ones_are_not(base: Path, work: Path) -> None:
    in_both(base, work, ".gitignore", "*.log\nbuild/\n!keep.log\n")
    in_both(base, work, "known.log")
    in_both(base, work, "sub/.gitignore", "local\n")
    (work / "known.log").write_text("changed")
    for name in ("new.log", "keep.log", "build/out", "sub/local", "local", ".hidden", "-dash", "build2/x"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("x")
    (work / "link.log").symlink_to("keep.log")
    assert set(kinds(changes_between(base, work))) == {
        "known.log", "keep.log", "local", ".hidden", "-dash", "build2/x", "link.log",
    }  # fmt: skip


def test_only_gitignore_files_of_the_tree_itself_count(base: Path, work: Path, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*\n")
    (work / ".ignore").write_text("a\n")
    (work / ".rgignore").write_text("a\n")
    (work / ".git" / "info").mkdir(parents=True)
    (work / ".git" / "info" / "exclude").write_text("a\n")
    (work / "a").write_text("x")
    assert set(kinds(changes_between(base, work))) == {"a", ".ignore", ".rgignore"}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", [".gitignore", ".git", ".ignore", "sub/.gitignore"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "endless"])
def test_planted_ignore_files_cannot_hang_or_hide(
    base: Path, work: Path, name: str, plant: Callable[[Path], None]
) -> None:
    (work / name).parent.mkdir(exist_ok=True)
    plant(work / name)
    (work / "seen").write_text("x")
    changes = changes_between(base, work)
    assert "seen" in kinds(changes)


def test_python_caches_are_left_out_unless_deleted(base: Path, work: Path) -> None:
    in_both(base, work, "p/__pycache__/old.pyc")
    in_both(base, work, "p/__pycache__/gone.pyc")
    (work / "p/__pycache__/old.pyc").write_text("changed")
    (work / "p/__pycache__/gone.pyc").unlink()
    for name in ("p/__pycache__/new.pyc", "p/x.pyc", ".pytest_cache/v"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("x")
    assert kinds(changes_between(base, work)) == {"p/__pycache__/gone.pyc": ChangeKind.DELETED}


def test_large_files_are_left_out_by_name(base: Path, work: Path) -> None:
    in_both(base, work, "grown")
    for name in ("grown", "new"):
        with (work / name).open("wb") as file:
            file.truncate(20_000_001)
    (work / "small").write_text("x")
    changes = changes_between(base, work)
    assert set(kinds(changes)) == {"small"}
    assert changes.left_out == ("grown: is larger than 20 MB", "new: is larger than 20 MB")


def test_a_file_of_a_terabyte_of_nothing_is_not_read(base: Path, work: Path) -> None:
    with (work / "hole").open("wb") as file:
        file.truncate(1 << 40)
    assert changes_between(base, work).left_out == ("hole: is larger than 20 MB",)


def test_too_many_changes_are_left_out_and_counted(base: Path, work: Path) -> None:
    for number in range(10_250):
        (work / f"{number:05}").touch()
    changes = changes_between(base, work)
    assert len(changes.items) == 10_000
    assert len(changes.left_out) == MAX_NAMED + 1
    assert changes.left_out[-1] == "and 150 more"


def test_endless_nesting_is_named_and_nothing_below_counts_as_deleted(
    base: Path, work: Path, nest: Callable[[Path, int], int]
) -> None:
    nest(work, 1_500)
    changes = changes_between(base, work)
    assert changes.items == ()
    assert len(changes.left_out) == 1
    assert "nested deeper" in changes.left_out[0]


def test_what_cannot_be_read_does_not_count_as_deleted(
    open_path: Path, as_ordinary_user: Callable[[Callable[[], None]], None]
) -> None:
    base, work = open_path / "base", open_path / "work"
    in_both(base, work, "shut/inside")
    in_both(base, work, "file")
    (work / "file").write_text("else!")
    (work / "file").chmod(0)
    (work / "shut").chmod(0)

    def judge() -> None:
        changes = changes_between(base, work)
        assert changes == Changes((), ("shut: cannot be read", "file: cannot be read"))

    as_ordinary_user(judge)
    (work / "shut").chmod(0o700)


def test_names_that_are_not_utf8_are_kept_and_shown_harmlessly(base: Path, work: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n\x1b[31m")
    (work / name).write_text("x")
    (change,) = changes_between(base, work).items
    assert os.fsencode(change.path) == b"caf\xe9\n\x1b[31m"
    assert shown(change.path) == "caf\\xe9\\n\\x1b[31m"
    assert shown("grün/ä b") == "grün/ä b"


def test_empty_directories_are_no_changes(base: Path, work: Path) -> None:
    (work / "empty").mkdir()
    (base / "was").mkdir()
    assert changes_between(base, work) == Changes(())
