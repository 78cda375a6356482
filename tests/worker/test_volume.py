"""The id of a shared volume: one for all that see it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from worker.contract.volume import volume_id


def test_all_that_ask_at_once_get_one_id_and_leave_one_file(tmp_path: Path) -> None:
    for number in range(20):
        volume = tmp_path / str(number)
        with ThreadPoolExecutor(8) as threads:
            ids = set(threads.map(volume_id, [volume] * 8))
        assert len(ids) == 1
        assert [path.name for path in volume.iterdir()] == ["volume"]
    assert len({volume_id(tmp_path / str(number)) for number in range(20)}) == 20


def test_what_is_no_id_is_told(tmp_path: Path) -> None:
    (tmp_path / "volume").write_text("mine\n")
    with pytest.raises(ValueError, match="holds no id of a volume: remove it"):
        volume_id(tmp_path)


def test_a_volume_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        volume_id(tmp_path / "file")
