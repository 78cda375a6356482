"""Fixtures for tests of what depends on who the worker is."""

import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from worker.beneath import remove_tree

NOBODY = 65_534


class AsOrdinaryUser(Protocol):
    """Runs assertions as a user without rights over others' files: in a child process where the tests run as root."""

    def __call__(self, act: Callable[[], None]) -> None: ...


@pytest.fixture
def as_ordinary_user() -> AsOrdinaryUser:
    def run(act: Callable[[], None]) -> None:
        if os.geteuid() != 0:
            act()
            return
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                act()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see stderr"

    return run


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that the ordinary user owns and can reach, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="hog-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, for who may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def nest() -> Iterator[Callable[[Path, int], int]]:
    """Nests directories called `d` and returns the innermost one's descriptor; removes them, which pytest cannot."""
    made: list[tuple[Path, int]] = []

    def make(directory: Path, depth: int) -> int:
        innermost = os.open(directory, os.O_RDONLY)
        made.append((directory / "d", innermost))
        for _ in range(depth):
            os.mkdir("d", dir_fd=innermost)
            following = os.open("d", os.O_RDONLY, dir_fd=innermost)
            os.dup2(following, innermost)
            os.close(following)
        return innermost

    yield make
    for directory, innermost in made:
        os.close(innermost)
        remove_tree(directory)
