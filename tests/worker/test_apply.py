import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.apply import Applied, apply_result, load_result, save_result
from worker.changes import changes_between
from worker.copying import Copier
from worker.errors import ResultFailed

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files to another user")

Shape = dict[str, tuple[str, str]]
"""Path → (`file`, `program` or `link`; content or target)."""


def lay(root: Path, shape: Shape) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, (kind, content) in shape.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(content)
        else:
            path.write_text(content)
            path.chmod(0o755 if kind == "program" else 0o644)
    return root


def shape_of(root: Path) -> Shape:
    found: Shape = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISLNK(status.st_mode):
            found[name] = ("link", str(path.readlink()))
        elif stat.S_ISREG(status.st_mode):
            found[name] = ("program" if status.st_mode & stat.S_IXUSR else "file", path.read_text())
    return found


def saved(place: Path, old: Shape, new: Shape) -> Path:
    """Return a session's directory that keeps the result of turning old into new."""
    session_dir = place / "session"
    base, work = lay(session_dir / "base", old), lay(session_dir / "work", new)
    save_result(session_dir, changes_between(base, work), work)
    return session_dir


OLD: Shape = {
    "kept": ("file", "kept"),
    "edited": ("file", "before\n"),
    "gone/deep/file": ("file", "x"),
    "turned": ("file", "x"),
    "was-file": ("file", "x"),
    "was-dir/file": ("file", "x"),
    "link": ("link", "kept"),
}
NEW: Shape = {
    "kept": ("file", "kept"),
    "edited": ("file", "after\n"),
    "turned": ("program", "x"),
    "was-file/inside": ("program", "y"),
    "was-dir": ("link", "kept"),
    "link": ("link", "edited"),
    "new/deep/file": ("file", "z"),
}
TOUCHED = ("edited", "gone/deep/file", "link", "new/deep/file", "turned", "was-dir", "was-dir/file", "was-file",
           "was-file/inside")  # fmt: skip


def test_a_result_turns_the_directory_into_the_copy(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    assert apply_result(session_dir, user) == Applied(applied=TOUCHED)
    assert shape_of(user) == NEW
    assert not (user / "gone").exists()
    assert sorted(path.name for path in user.iterdir()) == sorted({name.split("/")[0] for name in NEW})


def test_the_result_is_enough_without_the_copy(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    (session_dir / "work").rename(tmp_path / "away")
    (session_dir / "base").rename(tmp_path / "away too")
    apply_result(session_dir, user)
    assert shape_of(user) == NEW


def test_applying_twice_changes_nothing_more(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    first = apply_result(session_dir, user)
    inodes = {path: path.lstat().st_ino for path in user.rglob("*")}
    assert apply_result(session_dir, user) == first
    assert {path: path.lstat().st_ino for path in user.rglob("*")} == inodes


@pytest.mark.parametrize("done", [("edited",), ("gone/deep/file", "new/deep/file"), ("was-file", "was-file/inside")])
def test_an_attempt_that_was_killed_is_completed(tmp_path: Path, done: tuple[str, ...]) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    for name in done:
        if name in OLD:
            (user / name).unlink()
    lay(user, {name: NEW[name] for name in done if name in NEW})
    staged = ".sandhog-apply-left"
    (user / staged).mkdir()
    apply_result(session_dir, user)
    (user / staged).rmdir()
    assert shape_of(user) == NEW


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("edited", ("file", "user's\n")),
        ("edited", ("link", "kept")),
        ("edited", None),
        ("gone/deep/file", ("file", "user's")),
        ("turned", ("file", "user's")),
        ("was-dir/more", ("file", "user's")),
        ("was-dir/.git/config", ("file", "user's")),
        ("link", ("link", "elsewhere")),
        ("link", ("file", "kept")),
        ("new/deep/file", ("file", "user's")),
        ("new/deep", ("file", "user's")),
        ("new", ("link", "/tmp")),
        ("edited/now/a/directory", ("file", "user's")),
    ],
)
def test_what_the_user_changed_meanwhile_is_a_conflict_and_nothing_is_written(
    tmp_path: Path, name: str, theirs: tuple[str, str] | None
) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    above = user / name.split("/")[0]
    if name in OLD:
        (user / name).unlink()
    elif above.is_file():
        above.unlink()
    if theirs:
        lay(user, {name: theirs})
    before = shape_of(user)

    answer = apply_result(session_dir, user)

    assert answer.applied == ()
    assert len(answer.conflicts) == 1
    assert shape_of(user) == before
    assert sorted(path.name for path in user.iterdir()) == sorted({path.split("/")[0] for path in before})


def test_a_special_file_in_the_way_is_a_conflict(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, {}, {"a": ("file", "x")}), lay(tmp_path / "user", {})
    os.mkfifo(user / "a")
    assert apply_result(session_dir, user).conflicts == ("a",)


def test_no_link_leads_out_of_the_directory(tmp_path: Path) -> None:
    outside = lay(tmp_path / "outside", {"f": ("file", "old")})
    session_dir = saved(tmp_path, {"d/f": ("file", "old")}, {"d/f": ("file", "new"), "d/g": ("file", "new")})
    user = lay(tmp_path / "user", {"d": ("link", str(outside))})
    assert apply_result(session_dir, user).conflicts == ("d/f", "d/g")
    assert shape_of(outside) == {"f": ("file", "old")}


def test_what_both_made_alike_is_no_conflict(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    (user / "edited").write_text("after\n")
    lay(user, {"new/deep/file": ("file", "z")})
    assert apply_result(session_dir, user).conflicts == ()
    assert shape_of(user) == NEW


def test_files_keep_their_permissions_but_for_the_executable_bit(tmp_path: Path) -> None:
    old: Shape = {"a": ("file", "1"), "b": ("file", "1"), "c": ("program", "1"), "d": ("program", "1")}
    new: Shape = {"a": ("file", "2"), "b": ("program", "2"), "c": ("file", "1"), "d": ("program", "2")}
    session_dir, user = saved(tmp_path, old, new), lay(tmp_path / "user", old)
    for name, mode in {"a": 0o600, "b": 0o640, "c": 0o750, "d": 0o4711}.items():
        (user / name).chmod(mode)
    apply_result(session_dir, user)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in user.iterdir()}
    assert modes == {"a": 0o600, "b": 0o750, "c": 0o640, "d": 0o711}


@as_root
def test_files_keep_their_owner_and_new_ones_get_their_directorys(tmp_path: Path) -> None:
    old: Shape = {"theirs": ("file", "1"), "sub/f": ("file", "1")}
    new: Shape = {"theirs": ("file", "2"), "sub/f": ("file", "1"), "sub/new/f": ("file", "2"), "l": ("link", "/x")}
    session_dir, user = saved(tmp_path, old, new), lay(tmp_path / "user", old)
    for path, owner in {user: 1001, user / "theirs": 1002, user / "sub": 1003}.items():
        os.chown(path, owner, owner + 10)
    apply_result(session_dir, user)
    owners = {str(p.relative_to(user)): (p.lstat().st_uid, p.lstat().st_gid) for p in user.rglob("*")}
    assert owners["theirs"] == (1002, 1012)
    assert owners["l"] == (1001, 1011)
    assert owners["sub/new"] == owners["sub/new/f"] == (1003, 1013)


def test_a_directory_that_cannot_be_written_is_told_and_the_result_kept(
    open_path: Path, as_ordinary_user: Callable[[Callable[[], None]], None]
) -> None:
    def act() -> None:
        session_dir, user = saved(open_path, OLD, NEW), lay(open_path / "user", OLD)
        user.chmod(0o555)
        with pytest.raises(ResultFailed, match="apply it again"):
            apply_result(session_dir, user)
        assert shape_of(user) == OLD
        user.chmod(0o755)
        apply_result(session_dir, user)
        assert shape_of(user) == NEW

    as_ordinary_user(act)


@as_root
def test_a_full_disk_shows_before_anything_is_written(tmp_path: Path, small_disk: Path) -> None:
    new: Shape = {"a": ("file", "after"), "b": ("file", "x" * 3_000_000)}
    session_dir, user = saved(tmp_path, {"a": ("file", "before")}, new), small_disk / "user"
    lay(user, {"a": ("file", "before")})
    with pytest.raises(ResultFailed, match="No space left"):
        apply_result(session_dir, user)
    assert shape_of(user) == {"a": ("file", "before")}
    assert [path.name for path in user.iterdir()] == ["a"]


@as_root
def test_a_file_system_mounted_below_is_written_too(tmp_path: Path, small_disk: Path) -> None:
    session_dir = saved(tmp_path, {}, {"disk/a": ("program", "x"), "disk/l": ("link", "a")})
    apply_result(session_dir, small_disk.parent)
    assert shape_of(small_disk) == {"a": ("program", "x"), "l": ("link", "a")}


def test_a_directory_may_be_named_by_a_link(tmp_path: Path) -> None:
    session_dir, user = saved(tmp_path, OLD, NEW), lay(tmp_path / "user", OLD)
    (tmp_path / "short").symlink_to(user)
    apply_result(session_dir, tmp_path / "short")
    assert shape_of(user) == NEW


@pytest.mark.parametrize("name", ["missing", "loop"])
def test_a_directory_that_is_gone_is_told(tmp_path: Path, name: str) -> None:
    session_dir = saved(tmp_path, OLD, NEW)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ResultFailed, match="It is kept in"):
        apply_result(session_dir, tmp_path / name)


def test_a_session_without_a_result_is_refused(tmp_path: Path) -> None:
    assert load_result(tmp_path) is None
    with pytest.raises(ResultFailed, match="holds no result"):
        apply_result(tmp_path, tmp_path)


@pytest.mark.parametrize("path", ["../out", "/out", "a/../../out", "a//b", ".git/hooks/post-commit", "", "a/.GIT/x"])
def test_a_record_with_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    session_dir, user = saved(tmp_path, {}, {"a": ("file", "x")}), lay(tmp_path / "user", {})
    record = session_dir / "result" / "changes.json"
    record.write_text(record.read_text().replace('"path": "a"', f'"path": "{path}"'))
    with pytest.raises(ResultFailed, match="no path of a change"):
        apply_result(session_dir, user)


def test_a_result_replaces_an_earlier_one(tmp_path: Path) -> None:
    session_dir = saved(tmp_path, {}, {"a": ("file", "x")})
    lay(session_dir / "work", {"a": ("file", "y")})
    save_result(session_dir, changes_between(session_dir / "base", session_dir / "work"), session_dir / "work")
    user = lay(tmp_path / "user", {})
    apply_result(session_dir, user)
    assert shape_of(user) == {"a": ("file", "y")}


parts = st.sampled_from(["a", "b", "c", "ü", "\udcff"])
kinds = st.tuples(st.sampled_from(["file", "program", "link"]), st.sampled_from(["one", "two", "a"]))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    shape: Shape = {}
    for path in draw(st.lists(st.lists(parts, min_size=1, max_size=3), max_size=7)):
        name = "/".join(path)
        above = ["/".join(path[:count]) for count in range(1, len(path))]
        if not any(one in shape for one in above) and not any(one.startswith(f"{name}/") for one in shape):
            shape[name] = draw(kinds)
    return shape


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=shapes(), new=shapes(), theirs=shapes())
def test_a_directory_becomes_the_copy_or_stays_as_it_was(old: Shape, new: Shape, theirs: Shape) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        session_dir = saved(place, old, new)
        Copier().copy(session_dir / "base", place / "user")
        assert apply_result(session_dir, place / "user").conflicts == ()
        assert shape_of(place / "user") == new
        other = lay(place / "other", theirs)
        if apply_result(session_dir, other).conflicts:
            assert shape_of(other) == theirs
