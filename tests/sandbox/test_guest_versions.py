"""Earlier guest folders stay while somebody uses them."""

from pathlib import Path

from sandbox.guest_versions import GuestFolders


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir()
        (root / name / "guest.pyc").touch()


def test_a_folder_goes_when_nobody_has_used_it_for_long(tmp_path: Path) -> None:
    make(tmp_path, "new", "old", "older")
    now = [1_000_000.0]
    in_use = [str(tmp_path / "old")]
    folders = GuestFolders(tmp_path, tmp_path / "new", lambda: in_use, keep_s=100, clock=lambda: now[0])
    assert folders.tend() == []
    now[0] += 99
    assert folders.tend() == []
    now[0] += 2
    assert folders.tend() == ["older"]
    in_use.clear()
    now[0] += 102
    assert folders.tend() == ["old"]
    now[0] += 1000
    assert folders.tend() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.used"]


def test_what_another_node_uses_stays(tmp_path: Path) -> None:
    make(tmp_path, "mine", "theirs")
    now = [1_000_000.0]
    mine = GuestFolders(tmp_path, tmp_path / "mine", list, keep_s=100, clock=lambda: now[0])
    theirs = GuestFolders(tmp_path, tmp_path / "theirs", list, keep_s=100, clock=lambda: now[0])
    for _ in range(10):
        now[0] += 60
        assert mine.tend() == theirs.tend() == []
    now[0] += 101
    assert mine.tend() == ["theirs"]


def test_what_a_broken_build_or_removal_left_goes_too(tmp_path: Path) -> None:
    make(tmp_path, "mine", ".build-x", ".gone-y")
    started = (tmp_path / ".build-x").stat().st_mtime
    now = [started + 50]
    folders = GuestFolders(tmp_path, tmp_path / "mine", list, keep_s=100, clock=lambda: now[0])
    assert folders.tend() == []
    now[0] += 100
    assert sorted(folders.tend()) == [".build-x", ".gone-y"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine.used"]
