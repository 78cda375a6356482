"""A session's transcript over its segments, and the room that is kept for its end."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.errors import TranscriptError
from coordinator.session.events import Event
from coordinator.session.reading import is_being_written, read_session
from coordinator.session.reserve import Reserve
from coordinator.session.session_events import Notice, SessionResumed, SessionStarted
from coordinator.session.transcript import Transcript, segment_path

NAME = "s1"
STARTED = SessionStarted(
    session_id=NAME,
    prompt="p",
    model="m",
    policy="boxed",
    workspace_mode="bind",
    workspace_reason="",
    workspace="/p",
    image="i",
    max_steps=1,
)


def write(directory: Path, generation: int, *events: Event) -> Path:
    with Transcript.create(directory, NAME, generation) as transcript:
        for event in events:
            transcript(event)
    return segment_path(directory, NAME, generation)


def resumed(generation: int, previous: int, accepted_bytes: int) -> SessionResumed:
    return SessionResumed(
        session_id=NAME, generation=generation, previous=previous, accepted_bytes=accepted_bytes, by="test"
    )


def said(text: str) -> Notice:
    return Notice(text=text)


def words(directory: Path) -> list[str]:
    entries = read_session(directory).entries
    return [entry.event.text for entry in entries if isinstance(entry.event, Notice)]


def test_what_its_writer_appends_after_the_takeover_does_not_count(tmp_path: Path) -> None:
    first = Transcript.create(tmp_path, NAME, 1)
    first(STARTED)
    first(said("before"))
    accepted = first.size_bytes
    write(tmp_path, 2, resumed(2, 1, accepted), said("after"))
    first(said("the old owner woke up"))
    first.close()
    assert words(tmp_path) == ["before", "after"]
    reading = read_session(tmp_path)
    assert (reading.generation, reading.newest_generation) == (2, 2)


def test_half_a_line_at_a_segments_end_is_cut_off_by_the_next_owner(tmp_path: Path) -> None:
    path = write(tmp_path, 1, STARTED, said("whole"))
    with path.open("ab") as file:
        file.write(b'{"v":1,"seq":3,"at"')
    reading = read_session(tmp_path)
    assert reading.valid_bytes < path.stat().st_size
    write(tmp_path, 2, resumed(2, 1, reading.valid_bytes), said("next"))
    assert words(tmp_path) == ["whole", "next"]
    assert read_session(tmp_path).faults == ()


def test_of_two_that_took_over_the_later_one_counts(tmp_path: Path) -> None:
    size = write(tmp_path, 1, STARTED, said("a")).stat().st_size
    write(tmp_path, 2, resumed(2, 1, size), said("beaten"))
    write(tmp_path, 3, resumed(3, 1, size), said("counts"))
    assert words(tmp_path) == ["a", "counts"]


def test_an_owner_that_did_not_come_to_its_first_event_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1, STARTED, said("a"))
    write(tmp_path, 2)
    reading = read_session(tmp_path)
    assert words(tmp_path) == ["a"]
    assert (reading.generation, reading.newest_generation) == (1, 2)


def test_a_session_nobody_wrote_of_is_empty(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="no transcript"):
        read_session(tmp_path)
    write(tmp_path, 1)
    assert read_session(tmp_path).entries == ()


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    write(tmp_path, 3, resumed(3, 2, 10), said("a"))
    reading = read_session(tmp_path)
    assert words(tmp_path) == ["a"]
    assert "part 2" in reading.faults[0]


def test_segments_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    write(tmp_path, 2, resumed(2, 2, 10**6), said("a"))
    assert words(tmp_path) == ["a"]


def test_who_writes_is_seen(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path, NAME, 1)
    assert is_being_written(tmp_path)
    transcript.close()
    assert not is_being_written(tmp_path)
    assert not is_being_written(tmp_path / "nothing")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, for who may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def test_the_last_events_have_room_on_a_full_disk(small_disk: Path) -> None:
    reserve = Reserve(small_disk, size_bytes=1024 * 1024)
    reserve.hold()
    transcript = Transcript.create(small_disk / "s", NAME, reserve=reserve)
    transcript(STARTED)
    transcript.sync()
    for _ in range(100):
        transcript(said("x" * 30_000))
        if not (small_disk / "reserve").exists():
            break
    else:
        pytest.fail("the disk did not become full")
    with pytest.raises(TranscriptError, match="is full"):
        transcript.sync()
    transcript(said("the end"))
    transcript.close()
    assert words(small_disk / "s")[-1] == "the end"
    assert read_session(small_disk / "s").faults == ()


def test_no_session_begins_without_the_reserve(small_disk: Path) -> None:
    with pytest.raises(TranscriptError, match="full"):
        Reserve(small_disk, size_bytes=4 * 1024 * 1024).hold()
    assert list(small_disk.iterdir()) == []
    small = Reserve(small_disk, size_bytes=1024 * 1024)
    small.hold()
    small.hold()
    assert small.free()
    assert not small.free()
