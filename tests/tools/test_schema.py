import json
from typing import Any

import pytest
from pydantic import BaseModel

from tools.base import AnyTool, ErrorCode, ToolFailure
from tools.registry import Registry, builtin_registry
from tools.schema import parse_arguments

REGISTRY = builtin_registry()


def tool(name: str) -> AnyTool:
    found = REGISTRY.get(name)
    assert found is not None
    return found


def refusal(name: str, raw: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        parse_arguments(tool(name), raw)
    assert caught.value.code is ErrorCode.INVALID_PARAM
    return caught.value.message


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        ("{", "not JSON"),
        ("[1]", "not an array"),
        ("null", "not null"),
        ('"text"', "not a text"),
        ("7", "not the value 7"),
        ("", "'path' is missing"),
        ("[" * 100_000, "nested too deeply"),
        ('{"path": NaN}', "NaN"),
        ('{"path": "a", "pth": "b"}', "unknown argument 'pth'"),
        ('{"path": 1}', "path"),
        ('{"path": "a", "offset": true}', "offset"),
        ('{"path": "a", "offset": "1"}', "offset"),
        ('{"path": "a", "offset": 0}', "offset"),
        ('{"path": "\\ud800"}', "path"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_arguments_are_refused_with_the_fault_and_what_is_allowed(raw: str, fault: str) -> None:
    message = refusal("Read", raw)
    assert fault in message
    assert "path (string, required), offset (integer ≥ 1 ≤ 2000000000), limit (integer ≥ 1 ≤ 2000000000)" in message


def test_a_value_outside_an_enum_is_refused_with_the_allowed_ones() -> None:
    message = refusal("Grep", {"pattern": "x", "mode": "lines"})
    assert "'content', 'files' or 'count'" in message


def test_a_refusal_does_not_echo_a_huge_argument() -> None:
    assert len(refusal("Bash", {"command": "x", "timeout_ms": "9" * 120_000})) < 1_000


@pytest.mark.parametrize("raw", ['{"path": "a"}', {"path": "a"}, ' {"path": "a", "offset": 1} '])
def test_a_text_and_an_object_mean_the_same(raw: Any) -> None:
    assert parse_arguments(tool("Read"), raw).model_dump() == {"path": "a", "offset": 1, "limit": 2000}


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    assert parse_arguments(tool("Read"), '{"path": "a", "offset": 2.0, "limit": 1e2}').model_dump() == {
        "path": "a",
        "offset": 2,
        "limit": 100,
    }
    assert "offset" in refusal("Read", '{"path": "a", "offset": 2.5}')
    assert "too large a number" in refusal("Read", '{"path": "a", "offset": 1e999}')


@pytest.mark.parametrize("raw", ["", "  ", None, {}, "{}"])
def test_no_arguments_come_in_many_spellings(raw: Any) -> None:
    assert "'command' is missing" in refusal("Bash", raw)


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a"},
        {"path": "a", "old_string": "x"},
        {"path": "a", "old_string": "", "new_string": "y"},
        {"path": "a", "old_string": "x", "new_string": "x"},
        {"path": "a", "edits": []},
        {"path": "a", "edits": [{"old_string": "x"}]},
        {"path": "a", "edits": [{"old_string": "x", "new_string": "y", "version": 1}]},
        {"path": "a", "edits": [{"old_string": "x", "new_string": "y"}], "old_string": "x", "new_string": "y"},
        {"path": "a", "old_string": "x", "new_string": "y", "version": "1"},
    ],
)
def test_edit_takes_one_whole_form_and_no_other(arguments: dict[str, Any]) -> None:
    refusal("Edit", arguments)


def test_edit_takes_a_pair_or_a_list_and_null_for_what_is_left_out() -> None:
    pair = {"old_string": "x", "new_string": "y"}
    for arguments in ({"path": "a", **pair}, {"path": "a", "edits": [pair], "old_string": None, "new_string": None}):
        assert isinstance(parse_arguments(tool("Edit"), json.dumps(arguments)), BaseModel)


def test_schemas_are_sorted_closed_described_and_the_same_every_time() -> None:
    schemas = REGISTRY.function_schemas()
    names = [schema["function"]["name"] for schema in schemas]
    assert names == sorted(names)
    assert names == ["Bash", "BashOutput", "Edit", "Glob", "Grep", "KillBash", "Read", "Task", "TodoWrite", "Write"]
    assert json.dumps(schemas) == json.dumps(builtin_registry().function_schemas())
    assert "$ref" not in json.dumps(schemas)
    for schema in schemas:
        assert schema["type"] == "function"
        parameters = schema["function"]["parameters"]
        assert parameters["additionalProperties"] is False
        for entry in parameters["properties"].values():
            assert entry["description"]
            assert "title" not in entry


def test_hidden_tools_are_not_in_the_schemas() -> None:
    names = [schema["function"]["name"] for schema in REGISTRY.function_schemas(hidden={"Bash"})]
    assert "Bash" not in names
    assert REGISTRY.get("Bash") is not None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Read"):
        Registry([tool("Read"), tool("Read")])


def test_only_looking_is_concurrency_safe() -> None:
    arguments: dict[str, dict[str, Any]] = {
        "Read": {"path": "a"},
        "Grep": {"pattern": "x"},
        "Glob": {"pattern": "x"},
        "Bash": {"command": "x"},
        "Write": {"path": "a", "content": ""},
        "Edit": {"path": "a", "old_string": "x", "new_string": "y"},
        "Task": {"description": "x", "prompt": "x", "profile": "general"},
        "TodoWrite": {"todos": []},
        "BashOutput": {"id": "bg1"},
        "KillBash": {"id": "bg1"},
    }
    safe = {
        name
        for name in REGISTRY.names()
        if tool(name).is_concurrency_safe(parse_arguments(tool(name), arguments[name]))
    }
    assert safe == {"Read", "Grep", "Glob"}
