"""The budget of one result: cut at the worker, whole on the volume."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.base import ErrorCode, ToolResult
from worker.budget import SPILL_FROM_BYTES, fit
from worker.contract.orders import CallKey
from worker.spill import SpillBounds, SpillFile

KEY = CallKey(session="s", generation=1, step=1, index=0)
LINES = "".join(f"line {number}\n" for number in range(10_000))


def success(text: str) -> ToolResult:
    return ToolResult(status="success", text=text)


@pytest.fixture
def spill(tmp_path: Path) -> SpillFile:
    return SpillFile(tmp_path, KEY)


def spilled(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.iterdir()]


def test_a_short_result_is_as_it_was_and_leaves_no_file(spill: SpillFile, tmp_path: Path) -> None:
    result = success("x" * SPILL_FROM_BYTES)

    assert fit(result, spill, 50_000) == (result, None)
    assert spilled(tmp_path) == []


def test_above_8_kb_the_text_is_kept_although_nothing_is_cut(spill: SpillFile, tmp_path: Path) -> None:
    result = success("x" * (SPILL_FROM_BYTES + 1))

    assert fit(result, spill, 50_000) == (result, None)
    assert spilled(tmp_path) == [result.text.encode()]


def test_a_text_at_the_bound_is_not_cut(spill: SpillFile) -> None:
    result = success("é" * 25_000)

    assert fit(result, spill, 50_000) == (result, None)


def test_above_the_bound_head_and_tail_are_shown_and_the_path_named(spill: SpillFile, tmp_path: Path) -> None:
    cut, note = fit(success(LINES), spill, 50_000)

    assert len(cut.text.encode()) <= 50_000
    assert cut.text.startswith("line 0\n")
    assert cut.text.endswith("line 9999\n")
    assert spill.box_path in cut.text
    assert spilled(tmp_path) == [LINES.encode()]
    assert note is not None
    assert (note.total_bytes, note.total_lines) == (len(LINES), 10_000)
    assert 45_000 < note.shown_bytes < 50_000


def test_what_the_tool_spilled_itself_is_not_written_twice(spill: SpillFile, tmp_path: Path) -> None:
    spill.write(b"streamed by the tool\n")

    cut, note = fit(success(LINES), spill, 50_000)

    assert spilled(tmp_path) == [b"streamed by the tool\n"]
    assert spill.box_path in cut.text
    assert note is not None


def test_a_cut_error_keeps_its_code_and_message(spill: SpillFile) -> None:
    result = ToolResult.failure(ErrorCode.TIMEOUT, "took too long", text=LINES, data={"exit_code": None})

    cut, note = fit(result, spill, 20_000)

    assert note is not None
    assert cut == result.with_text(cut.text)
    assert len(cut.text) <= 20_000


def test_two_large_results_have_two_files_each_with_its_own_text(tmp_path: Path) -> None:
    for index, letter in enumerate("ab"):
        fit(success(letter * 60_000), SpillFile(tmp_path, KEY.model_copy(update={"index": index})), 50_000)

    assert sorted(spilled(tmp_path)) == [b"a" * 60_000, b"b" * 60_000]


def test_a_volume_that_does_not_take_the_text_is_told(tmp_path: Path) -> None:
    cut, note = fit(success(LINES), SpillFile(tmp_path / "gone", KEY), 50_000)

    assert note is not None
    assert cut.data["spill_flaw"] == "volume"
    assert "lines; the rest was not kept: the volume for kept output took no more: No such file" in cut.text
    assert "/spill" not in cut.text


def test_a_file_with_the_beginning_only_is_told_as_that(tmp_path: Path) -> None:
    cut, _ = fit(success(LINES), SpillFile(tmp_path, KEY, SpillBounds(call_bytes=60_000)), 50_000)

    assert cut.data["spill_flaw"] == "call_bound"
    assert "its first 60000 bytes: /spill/1-1-0-1.txt (no more is kept of one call)" in cut.text
    assert "all of it" not in cut.text


def test_a_text_that_is_shown_whole_keeps_the_word_of_a_failed_volume(tmp_path: Path) -> None:
    result = success("x" * 20_000)
    kept, note = fit(result, SpillFile(tmp_path / "gone", KEY), 50_000)

    assert (kept.text, note) == (result.text, None)
    assert kept.data["spill_flaw"] == "volume"


@given(st.text(max_size=400), st.integers(min_value=250, max_value=600), st.integers(min_value=1, max_value=40))
def test_any_text_fits_its_bound(tmp_path_factory: pytest.TempPathFactory, piece: str, bound: int, times: int) -> None:
    text = piece * times
    spill = SpillFile(tmp_path_factory.mktemp("spill"), KEY)
    cut, note = fit(success(text), spill, bound)

    size = len(text.encode())
    assert len(cut.text.encode()) <= bound
    assert (note is None) == (size <= bound)
    if note is None:
        assert cut.text == text
    else:
        assert note.total_bytes == size
        assert spill.box_path in cut.text
