"""Spill files: one a call, plain, bounded, readable by the box's user."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contract.orders import CallKey
from worker.spill import SpillFile

KEY = CallKey(session="s", generation=2, step=3, index=1)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def file_of(spill: SpillFile, directory: Path) -> Path:
    return directory / spill.box_path.removeprefix("/spill/")


def test_nothing_written_is_no_file(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY)
    spill.write(b"")

    assert not spill.is_written
    assert list(tmp_path.iterdir()) == []


def test_chunks_are_appended_as_they_are(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY)
    for chunk in (b"a\n", b"\xff\x00", b"b"):
        spill.write(chunk)

    assert file_of(spill, tmp_path).read_bytes() == b"a\n\xff\x00b"
    assert (spill.is_written, spill.written_bytes, spill.bound_hit) == (True, 5, False)


@pytest.mark.usefixtures("strict_umask")
def test_the_boxs_user_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY)
    spill.write(b"x")

    assert stat.S_IMODE(file_of(spill, tmp_path).stat().st_mode) == 0o644


@pytest.mark.parametrize("change", ["generation", "step", "index", "attempt"])
def test_each_call_has_a_file_of_its_own(tmp_path: Path, change: str) -> None:
    other = KEY.model_copy(update={change: 9})
    SpillFile(tmp_path, KEY).write(b"one")
    SpillFile(tmp_path, other).write(b"two")

    assert sorted(file.read_bytes() for file in tmp_path.iterdir()) == [b"one", b"two"]


def test_a_repeated_write_of_a_call_starts_over(tmp_path: Path) -> None:
    SpillFile(tmp_path, KEY).write(b"first, and longer")
    again = SpillFile(tmp_path, KEY)
    again.write(b"se")
    again.write(b"cond")

    assert file_of(again, tmp_path).read_bytes() == b"second"


@given(st.lists(st.binary(max_size=8), max_size=12), st.integers(min_value=1, max_value=30))
def test_the_bound_keeps_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], bound: int
) -> None:
    directory = tmp_path_factory.mktemp("spill")
    spill = SpillFile(directory, KEY, bound_bytes=bound)
    for chunk in chunks:
        spill.write(chunk)

    whole = b"".join(chunks)
    assert spill.written_bytes == min(len(whole), bound)
    assert spill.bound_hit == (len(whole) > bound)
    assert spill.is_written == bool(whole)
    if whole:
        assert file_of(spill, directory).read_bytes() == whole[:bound]


def test_a_volume_that_is_gone_is_an_error(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path / "gone", KEY)

    with pytest.raises(FileNotFoundError):
        spill.write(b"x")
    assert (spill.is_written, spill.written_bytes) == (False, 0)
