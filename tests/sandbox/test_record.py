"""Records of boxes on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.record import BoxRecord, RecordStore, uptime_s

RECORD = BoxRecord("b1", "sandhog-b1", "n", "s", 1, 1.0, 2.0, "sha256:x", "/w", "/s", 5, 5, "default")


def test_a_record_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records")
    store.save(RECORD)
    assert store.load("b1") == RECORD
    assert store.box_ids() == ["b1"]
    store.remove("b1")
    store.remove("b1")
    assert store.load("b1") is None
    assert store.box_ids() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1, "box_id": "b1"}'])
def test_a_record_that_cannot_be_read_is_none_but_is_listed(tmp_path: Path, text: str) -> None:
    store = RecordStore(tmp_path)
    (tmp_path / "b1.json").write_text(text)
    assert store.load("b1") is None
    assert store.box_ids() == ["b1"]


def test_a_box_is_past_its_time_by_both_clocks_or_by_the_one_that_an_earlier_release_wrote(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    assert RECORD.is_past(3.0)
    assert not RECORD.is_past(1.0)

    store.renew("b1", "s", 2, now=1.0, lifetime_s=60.0, changes={})

    renewed = store.load("b1")
    assert renewed is not None
    assert not renewed.is_past(1e12), "the clock was set"
    assert replace(renewed, expires_up=uptime_s() - 1).is_past(1e12)
