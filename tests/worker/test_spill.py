"""Spill files: one a call, plain, bounded, readable by the box's user."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.spilling import SpillFlaw, whereabouts
from worker.contract.orders import CallKey
from worker.settings import NodeSettings
from worker.spill import SpillBounds, SpillFile, Spills

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
    assert (spill.is_written, spill.written_bytes, spill.flaw) == (True, 5, None)


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


@given(
    st.lists(st.binary(max_size=8), max_size=12),
    st.integers(min_value=0, max_value=30),
    st.integers(min_value=0, max_value=30),
)
def test_the_bounds_keep_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], call_bytes: int, session_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("spill")
    spill = SpillFile(directory, KEY, SpillBounds(call_bytes, session_bytes))
    for chunk in chunks:
        spill.write(chunk)

    whole, bound = b"".join(chunks), min(call_bytes, session_bytes)
    assert spill.written_bytes == min(len(whole), bound)
    assert (spill.flaw is not None) == (len(whole) > bound)
    if spill.flaw is not None:
        assert spill.flaw is (SpillFlaw.CALL_BOUND if call_bytes <= session_bytes else SpillFlaw.SESSION_BOUND)
    assert [file.read_bytes() for file in directory.iterdir()] == ([whole[:bound]] if whole[:bound] else [])


def test_the_files_of_a_session_share_its_room(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    spills = Spills(SpillBounds(call_bytes=100, session_bytes=250))
    first, second, third = (spills.file(tmp_path, KEY.model_copy(update={"index": n})) for n in range(3))
    for spill in (first, second, third, first, second, third):
        spill.write(bytes(45))
    assert [spill.written_bytes for spill in (first, second, third)] == [90, 90, 70]
    assert [spill.flaw for spill in (first, second, third)] == [None, None, SpillFlaw.SESSION_BOUND]
    assert (first.room_bytes, third.room_bytes) == (0, 0)

    (tmp_path / "spill" / third.box_path.removeprefix("/spill/")).unlink()
    later = Spills(SpillBounds(call_bytes=100, session_bytes=250)).file(tmp_path, "later")
    assert later.room_bytes == 70


def test_after_a_part_that_was_left_out_nothing_follows(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY, SpillBounds(call_bytes=10))
    for chunk in (b"12345678", b"abc", b"d"):
        spill.write(chunk)

    assert file_of(spill, tmp_path).read_bytes() == b"12345678ab"
    assert (spill.flaw, spill.room_bytes) == (SpillFlaw.CALL_BOUND, 0)


def test_a_join_goes_on_with_the_file_of_the_nodes_earlier_life(tmp_path: Path) -> None:
    SpillFile(tmp_path, KEY).write(b"before ")
    joined = SpillFile(tmp_path, KEY, joining=True)
    assert (joined.is_written, joined.written_bytes) == (True, 7)
    joined.write(b"after")
    assert file_of(joined, tmp_path).read_bytes() == b"before after"

    assert SpillFile(tmp_path, KEY, SpillBounds(call_bytes=12), joining=True).flaw is SpillFlaw.CALL_BOUND
    other = SpillFile(tmp_path, KEY.model_copy(update={"index": 7}), joining=True)
    assert not other.is_written


def test_starting_over_forgets_what_was_written(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY, SpillBounds(call_bytes=4))
    spill.write(b"first")
    spill.start_over()
    assert (spill.written_bytes, spill.flaw) == (0, None)
    spill.write(b"two")
    assert file_of(spill, tmp_path).read_bytes() == b"two"


def test_a_file_can_be_read_while_it_grows(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, KEY)
    spill.write(b"one\n")
    with file_of(spill, tmp_path).open("rb") as reader:
        assert reader.read() == b"one\n"
        spill.write(b"two\n")
        assert reader.read() == b"two\n"


def test_a_volume_that_is_gone_is_noted(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path / "gone", KEY)
    spill.write(b"x")

    assert (spill.is_written, spill.written_bytes, spill.flaw) == (False, 0, SpillFlaw.VOLUME)
    assert spill.problem == "No such file or directory"
    assert whereabouts(spill) == (
        "the rest was not kept: the volume for kept output took no more: No such file or directory"
    )


def test_a_full_volume_keeps_the_beginning(small_disk: Path) -> None:
    spill = SpillFile(small_disk, KEY)
    for _ in range(40):
        spill.write(bytes(100_000))

    assert (spill.flaw, spill.problem) == (SpillFlaw.VOLUME, "No space left on device")
    assert 1_500_000 < spill.written_bytes == file_of(spill, small_disk).stat().st_size <= 2 * 1024 * 1024
    assert whereabouts(spill).startswith(f"its first {spill.written_bytes} bytes: {spill.box_path} (the volume")


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    spill = SpillFile(tmp_path, KEY, joining=True)
    file_of(spill, tmp_path).symlink_to(target)
    spill.write(b"x")

    assert target.read_text() == "mine"


def test_the_bounds_are_settings_of_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDHOG_SPILL_CALL_BYTES", "10")
    monkeypatch.setenv("SANDHOG_SPILL_SESSION_BYTES", "20")

    settings = NodeSettings(redis_url="redis://here", state_dir=tmp_path)

    assert settings.spill_bounds == SpillBounds(call_bytes=10, session_bytes=20)
    assert SpillBounds() == SpillBounds(call_bytes=64 * 1024 * 1024, session_bytes=1024 * 1024 * 1024)
