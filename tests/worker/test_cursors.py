"""Cursors: kept over calls and lives of the node, the same for a call that is asked again."""

from pathlib import Path

from worker.cursors import KEPT, FileCursors


def test_a_call_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    first = FileCursors(tmp_path, "s:1:1:0:1")
    assert first.begin("s/box/bg1") == 0
    first.end("s/box/bg1", 10)

    second = FileCursors(tmp_path, "s:1:2:0:1")
    assert (second.begin("s/box/bg1"), second.begin("s/box/bg2")) == (10, 0)
    second.end("s/box/bg1", 25)
    assert FileCursors(tmp_path, "s:1:3:0:1").begin("s/box/bg1") == 25


def test_the_same_call_begins_where_it_began(tmp_path: Path) -> None:
    FileCursors(tmp_path, "one").end("bg1", 10)
    FileCursors(tmp_path, "two").end("bg1", 25)
    again = FileCursors(tmp_path, "two")
    assert again.begin("bg1") == 10
    again.end("bg1", 40)
    assert FileCursors(tmp_path, "two").begin("bg1") == 10
    assert FileCursors(tmp_path, "three").begin("bg1") == 40


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    for number in range(KEPT + 5):
        FileCursors(tmp_path, "c").end(f"bg{number}", 7)
    later = FileCursors(tmp_path, "later")
    assert (later.begin("bg4"), later.begin("bg5")) == (0, 7)


def test_a_spoilt_file_or_a_volume_that_is_gone_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "background.json").write_text('{"bg1": {"call": 1}}')
    assert FileCursors(tmp_path, "c").begin("bg1") == 0
    (tmp_path / "background.json").write_text("[")
    assert FileCursors(tmp_path, "c").begin("bg1") == 0
    gone = FileCursors(tmp_path / "gone", "c")
    gone.end("bg1", 3)
    assert gone.begin("bg1") == 0
