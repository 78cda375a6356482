"""A step's answers: what each outcome becomes, and how all of them fit together."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from coordinator.errors import ConfigError
from coordinator.session.bounds import BUDGETS, Budgets
from coordinator.session.budget import LEAST_BYTES, Answered, answered, refused, within_step
from coordinator.session.event_fields import CutInfo
from coordinator.session.plan import PlannedCall
from coordinator.settings import read_settings
from tools.base import ErrorCode, ToolFailure, ToolResult
from worker.contract.orders import CallKey, CallOutcome, CutNote, Fate

KEY = CallKey(session="s", generation=1, step=1, index=0)
CALL = PlannedCall(0, "c0", "Read", "x")
RESULT = ToolResult(status="success", text="done", data={"n": 1})
PATH = "/spill/1-1-0-1.txt"
STEP_BYTES = BUDGETS.step_bytes


def large(size_bytes: int, index: int = 0, *, was_cut: bool = False) -> Answered:
    text = "".join(f"{number:>9}\n" for number in range(size_bytes // 10)).ljust(size_bytes, "x")
    cut = CutInfo(total_bytes=1_000_000, shown_bytes=size_bytes, path=PATH) if was_cut else None
    call = replace(CALL, index=index)
    return Answered(call, RESULT.with_text(text), spill_path=f"/spill/1-1-{index}-1.txt", cut=cut)


def sizes(answers: list[Answered]) -> list[int]:
    return [len(one.result.text.encode()) for one in answers]


class TestAnswers:
    def test_a_refused_call_says_why(self) -> None:
        answer = refused(replace(CALL, refusal=ToolFailure(ErrorCode.INVALID_PARAM, "path is missing")))

        content = json.loads(answer.content)
        assert content["status"] == "error"
        assert content["error"] == {"code": "INVALID_PARAM", "message": "path is missing"}

    def test_a_result_is_passed_on_as_it_is(self) -> None:
        outcome = CallOutcome(key=KEY.next_attempt(), fate=Fate.RAN, result=RESULT.model_dump(mode="json"))

        answer = answered(CALL, outcome, 12.5)

        assert answer.result == RESULT
        assert (answer.time_ms, answer.attempt, answer.cut, answer.note) == (12.5, 2, None, None)

    def test_what_a_node_of_a_later_release_says_besides_is_passed_over(self) -> None:
        result: dict[str, JsonValue] = {"status": "success", "text": "x", "of_tomorrow": 1, "stats": {"of_tomorrow": 2}}

        assert answered(CALL, CallOutcome(key=KEY, fate=Fate.RAN, result=result), 0).result.text == "x"

    @pytest.mark.parametrize("result", [None, {}, {"text": "x", "of_tomorrow": 1}, {"status": "error", "text": ""}])
    def test_a_result_that_cannot_be_read_is_an_error_that_says_so(self, result: dict[str, JsonValue] | None) -> None:
        answer = answered(CALL, CallOutcome(key=KEY, fate=Fate.RAN, result=result), 0)

        assert answer.result.error_code is ErrorCode.INTERNAL_ERROR
        assert "cannot be read" in (answer.result.error_message or "")

    def test_a_call_that_did_not_run_says_that(self) -> None:
        outcome = CallOutcome(key=KEY, fate=Fate.DID_NOT_RUN, reason="The call did not run: the node is gone.")

        result = answered(CALL, outcome, 0).result

        assert result.error_code is ErrorCode.EXECUTION_ERROR
        assert result.error_message == "The call did not run: the node is gone."

    def test_a_call_whose_outcome_nobody_knows_may_have_run(self) -> None:
        outcome = CallOutcome(key=KEY, fate=Fate.UNKNOWN, reason="The call may have run: no answer.")

        answer = answered(CALL, outcome, 0)

        assert answer.result.error_code is ErrorCode.OUTCOME_UNKNOWN
        assert answer.result.error_message == answer.note == "The call may have run: no answer."

    def test_what_is_known_of_an_unknown_outcome_is_kept(self) -> None:
        known = ToolResult.failure(ErrorCode.OUTCOME_UNKNOWN, "the sandbox is gone", text="half a line")
        outcome = CallOutcome(key=KEY, fate=Fate.UNKNOWN, result=known.model_dump(mode="json"), reason="gone")

        assert answered(CALL, outcome, 0).result == known

    def test_the_workers_cut_is_passed_on_with_its_path(self) -> None:
        outcome = CallOutcome(
            key=KEY,
            fate=Fate.RAN,
            result=RESULT.model_dump(mode="json"),
            cut=CutNote(total_bytes=90_000, shown_bytes=49_000, total_lines=3),
            spill_path=PATH,
        )

        assert answered(CALL, outcome, 0).cut == CutInfo(total_bytes=90_000, shown_bytes=49_000, path=PATH)

    def test_a_note_about_the_box_stands_before_the_text(self) -> None:
        outcome = CallOutcome(key=KEY, fate=Fate.RAN, result=RESULT.model_dump(mode="json"), box_note="New box.")

        assert json.loads(answered(CALL, outcome, 0).content)["text"] == "[New box.]\ndone"

    def test_every_content_is_one_json_object_in_one_line(self) -> None:
        content = Answered(CALL, RESULT.with_text("a\n\u2028é\x00")).content

        assert "\n" not in content
        assert json.loads(content)["text"] == "a\n\u2028é\x00"


class TestStep:
    def test_what_fits_is_not_touched(self) -> None:
        answers = [large(50_000, index) for index in range(4)]

        assert within_step(answers) == answers

    def test_the_largest_is_cut_first_and_the_others_stay(self) -> None:
        answers = [large(size, index) for index, size in enumerate([40_000, 90_000, 30_000, 50_000, 20_000])]

        kept = within_step(answers)

        assert [one.cut is not None for one in kept] == [False, True, False, False, False]
        assert STEP_BYTES - 200 < sum(sizes(kept)) <= STEP_BYTES
        assert kept[1].result.text.startswith("        0\n")

    def test_equal_ones_are_cut_alike(self) -> None:
        kept = sizes(within_step([large(60_000, index) for index in range(5)]))

        assert sum(kept) <= STEP_BYTES
        assert max(kept) - min(kept) < 100

    def test_several_large_ones_beside_small_ones_fit(self) -> None:
        kept = within_step([large(60_000), large(50_000), large(40_000)], 80_000)

        assert 79_000 < sum(sizes(kept)) <= 80_000

    def test_a_cut_names_the_file_that_holds_all_of_it(self) -> None:
        kept = within_step([large(150_000, 0), large(150_000, 1)])

        for one in kept:
            assert f"all of it: {one.spill_path}" in one.result.text
            assert one.cut is not None
            assert one.cut.path == one.spill_path
            assert (one.cut.total_bytes, one.cut.shown_bytes < 100_000) == (150_000, True)

    def test_a_cut_says_what_its_file_lacks(self) -> None:
        hint = "its first 64 bytes: /spill/1-1-0-1.txt (no more is kept of one call)"
        outcome = CallOutcome(
            key=KEY,
            fate=Fate.RAN,
            result=RESULT.with_text("x" * 9_000).model_dump(mode="json"),
            spill_path=PATH,
            spill_hint=hint,
        )

        (kept,) = within_step([answered(CALL, outcome, 0)], 5_000)

        assert f"; {hint} …]" in kept.result.text
        assert "all of it" not in kept.result.text

    def test_without_a_file_no_path_is_named(self) -> None:
        (kept,) = within_step([replace(large(9_000), spill_path="")], 5_000)

        assert kept.cut is not None
        assert kept.cut.path is None
        assert "all of it" not in kept.result.text

    def test_what_the_worker_cut_stays_where_the_others_are_enough(self) -> None:
        kept = within_step([large(50_000, index, was_cut=index < 3) for index in range(5)])

        assert [one.result.text == large(50_000, at).result.text for at, one in enumerate(kept)] == [True] * 3 + [
            False
        ] * 2

    def test_what_the_worker_cut_is_cut_again_where_they_are_not(self) -> None:
        kept = within_step([large(50_000, index, was_cut=True) for index in range(6)])

        assert sum(sizes(kept)) <= STEP_BYTES
        assert all(one.cut is not None and one.cut.total_bytes == 1_000_000 for one in kept)

    def test_a_cut_error_keeps_its_code(self) -> None:
        failure = ToolResult.failure(ErrorCode.TIMEOUT, "too slow", text="x" * 9_000)

        (kept,) = within_step([Answered(CALL, failure)], 5_000)

        assert kept.cut is not None
        assert json.loads(kept.content)["error"] == {"code": "TIMEOUT", "message": "too slow"}

    def test_no_answers_are_none(self) -> None:
        assert within_step([]) == []

    @given(
        st.lists(st.tuples(st.integers(min_value=0, max_value=90_000), st.booleans()), max_size=12),
        st.sampled_from([5_000, 10_000, 60_000, STEP_BYTES]),
    )
    def test_a_step_is_always_within_its_bound(self, given_: list[tuple[int, bool]], bound: int) -> None:
        answers = [large(size, index, was_cut=was_cut) for index, (size, was_cut) in enumerate(given_)]

        kept = within_step(answers, bound)

        before, after = sizes(answers), sizes(kept)
        assert sum(after) <= bound
        # Nothing is lost, moved, lengthened, or cut below the least where that can be.
        least = LEAST_BYTES if sum(min(size, LEAST_BYTES) for size in before) <= bound else 0
        assert [one.call for one in kept] == [one.call for one in answers]
        for old, new, was, now in zip(answers, kept, before, after, strict=True):
            assert min(was, least) - 400 <= now <= was
            assert new == old or (new.cut is not None and new.result.with_text(old.result.text) == old.result)
        # Whatever is smaller than one that was left alone was left alone too.
        for fresh in (True, False):
            group = [at for at, one in enumerate(answers) if (one.cut is None) is fresh]
            whole = [before[at] for at in group if after[at] == before[at]]
            if whole:
                assert all(after[at] == before[at] for at in group if before[at] < max(whole))


@pytest.mark.parametrize("status", ["success", "partial"])
def test_an_answer_without_any_special_has_no_error(status: str) -> None:
    answer = Answered(CALL, RESULT.model_copy(update={"status": status}))

    assert "error" not in json.loads(answer.content)


def test_the_bounds_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().budgets == BUDGETS
    monkeypatch.setenv("SANDHOG_RESULT_BYTES", "20000")
    monkeypatch.setenv("SANDHOG_STEP_BYTES", "60000")
    assert read_settings().budgets == Budgets(result_bytes=20_000, step_bytes=60_000)
    monkeypatch.setenv("SANDHOG_RESULT_BYTES", "1")
    with pytest.raises(ConfigError, match="SANDHOG_RESULT_BYTES"):
        read_settings()
