import json
import math
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from sandbox.wire import RefusalCode
from tools.base import ErrorCode, Stats, ToolResult
from tools.refusals import CODES


def test_an_answer_is_one_compact_object_without_an_error_on_success() -> None:
    result = ToolResult(status="success", text="hé\n", data={"n": 1}, stats=Stats(bytes=3)).timed(1.26)
    assert (
        result.to_answer()
        == '{"status":"success","text":"hé\\n","data":{"n":1},"stats":{"time_ms":1.3,"bytes":3},"context":{}}'
    )


def test_an_error_answer_carries_code_and_message() -> None:
    answer = json.loads(ToolResult.failure(ErrorCode.TIMEOUT, "too slow", text="so far").to_answer())
    assert answer["error"] == {"code": "TIMEOUT", "message": "too slow"}
    assert answer["text"] == "so far"


def test_a_cut_error_keeps_its_code() -> None:
    result = ToolResult.failure(ErrorCode.TIMEOUT, "too slow", text="x" * 100).with_text("x")
    assert result.error_code is ErrorCode.TIMEOUT


def test_arguments_are_echoed_short() -> None:
    answer = ToolResult(status="success", text="ok").with_arguments({"content": "x" * 120_000, "n": 1}).to_answer()
    assert len(answer) < 500
    assert json.loads(answer)["context"]["arguments"]["n"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "error", "text": ""},
        {"status": "success", "text": "", "error_code": ErrorCode.TIMEOUT, "error_message": "x"},
        {"status": "error", "text": "", "error_code": ErrorCode.TIMEOUT},
        {"status": "done", "text": ""},
        {"status": "success", "text": "", "more": 1},
        {"status": "success", "text": "", "data": {"x": math.nan}},
        {"status": "success", "text": "", "data": {"x": object()}},
        {"status": "success", "text": "", "data": {"x": "\ud800"}},
    ],
)
def test_a_result_that_is_unsound_or_not_json_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's own and the encoder's
        ToolResult(**fields)


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        ToolResult(status="success", text="").text = "x"  # type: ignore[misc]


def test_a_result_survives_the_way_through_json() -> None:
    result = ToolResult.failure(ErrorCode.CONFLICT, "changed", data={"path": "a"}).timed(2)
    assert ToolResult.model_validate(json.loads(json.dumps(result.model_dump(mode="json")))) == result


def test_the_models_mistakes_are_no_faults() -> None:
    faults = {code for code in ErrorCode if code.counts_as_fault}
    assert faults == {ErrorCode.TIMEOUT, ErrorCode.BOX_LOST, ErrorCode.INTERNAL_ERROR}


def test_every_refusal_of_the_guest_has_a_code() -> None:
    assert set(CODES) == set(RefusalCode)


def test_importing_the_tools_imports_neither_docker_nor_celery() -> None:
    code = (
        "import sys, tools.registry, tools.permission, tools.schema, tools.cutting\n"
        "print(sorted({'docker', 'celery', 'redis', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
