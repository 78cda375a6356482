"""Bytes on the disk: the ring keeps the last ones, the shelf all or none."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest import scratch
from sandbox.guest.scratch import LEAST_RING_BYTES, Ring, Shelf

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 2 MB, the only place for the files."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no file system may be mounted here")
    monkeypatch.setattr(scratch, "PLACES", (str(place),))
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@given(st.lists(st.binary(max_size=60)), st.integers(1, 50), st.integers(0, 2000), st.integers(0, 300))
def test_the_ring_has_the_last_bytes_and_knows_where_they_begin(
    chunks: list[bytes], capacity: int, offset: int, size: int
) -> None:
    ring = Ring(capacity)
    for chunk in chunks:
        ring.add(chunk)
    whole = b"".join(chunks)
    first = max(0, len(whole) - capacity)
    assert (ring.first, ring.total) == (first, len(whole))
    start = min(max(offset, first), len(whole))
    assert ring.read(offset, size) == (start, whole[start : start + size])
    ring.close()
    assert ring.read(0, 10) == (len(whole), b"")


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_makes_the_ring_smaller() -> None:
    ring = Ring(16 * MIB)
    whole = os.urandom(5 * MIB)
    for at in range(0, len(whole), 65_536):
        ring.add(whole[at : at + 65_536])
    assert ring.total == len(whole)
    assert MIB < ring.total - ring.first <= 2 * MIB
    assert ring.read(0, 16 * MIB) == (ring.first, whole[ring.first :])
    ring.close()


def test_a_disk_without_room_keeps_nothing_and_counts_on(small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(2 * MIB - LEAST_RING_BYTES))
    ring = Ring(16 * MIB)
    ring.add(bytes(100_000))
    assert (ring.first, ring.total) == (100_000, 100_000)
    assert ring.read(0, 100) == (100_000, b"")
    shelf = Shelf(MIB)
    assert shelf.put(bytes(100_000)) == -1


def test_where_no_place_takes_a_file_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "PLACES", ("/no/such/place",))
    ring = Ring(100)
    ring.add(b"abc")
    assert ring.read(0, 100) == (3, b"")
    assert Shelf(100).put(b"abc") == -1


def test_a_file_system_that_makes_no_nameless_files_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "PLACES", (str(tmp_path),))
    # On a directory this is EISDIR, which is what such file systems say to it.
    monkeypatch.setattr(os, "O_TMPFILE", 0)
    ring = Ring(100)
    ring.add(b"abc")
    assert ring.read(0, 100) == (0, b"abc")
    assert list(tmp_path.iterdir()) == []
    ring.close()


def test_the_shelf_gives_back_what_was_put_and_its_room_in_the_end() -> None:
    shelf = Shelf(10)
    first, second = shelf.put(b"abcd"), shelf.put(b"efghij")
    assert (shelf.get(second, 6), shelf.get(first, 4)) == (b"efghij", b"abcd")
    assert shelf.put(b"x") == -1
    shelf.drop()
    assert shelf.put(b"x") == -1
    shelf.drop()
    assert shelf.get(shelf.put(b"again"), 5) == b"again"
    with pytest.raises(OSError, match="shorter"):
        shelf.get(0, 50)
