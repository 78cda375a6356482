"""The folder that a box brings along."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sandbox.guest_folder import GuestFolderError, Sources, find_sources, install
from sandbox.spec import MIB
from sandbox.unwinding import drop_unwinding


def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    folder = install(tmp_path)
    before = folder.stat().st_mtime_ns
    assert install(tmp_path) == folder
    assert folder.stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_it_is_small_and_open_to_every_user(guest_folder: Path) -> None:
    files = [path for path in guest_folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in files) <= 15 * MIB
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in files)
    assert all(path.stat().st_mode & 0o555 == 0o555 for path in guest_folder.rglob("*") if path.is_dir())
    assert not any(path.is_symlink() for path in guest_folder.rglob("*"))


def test_its_search_program_runs(guest_folder: Path) -> None:
    printed = subprocess.run([guest_folder / "bin" / "rg", "--version"], capture_output=True, text=True, check=True)
    assert printed.stdout.startswith("ripgrep")


def test_a_program_without_its_tables_has_the_same_size_and_runs(tmp_path: Path) -> None:
    true = shutil.which("true")
    assert true is not None
    copy, text = tmp_path / "true", tmp_path / "text"
    shutil.copy(true, copy)
    text.write_text("no program")
    before = copy.read_bytes()
    for path in (copy, text):
        drop_unwinding(path)
    assert len(copy.read_bytes()) == len(before)
    assert copy.read_bytes().count(0) > before.count(0)
    assert subprocess.run([copy], check=False).returncode == 0
    assert text.read_text() == "no program"


def test_an_interpreter_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    false = shutil.which("false")
    assert false is not None
    with pytest.raises(GuestFolderError):
        install(tmp_path, Sources(Path(false), find_sources().rg))
    assert list(tmp_path.iterdir()) == []
