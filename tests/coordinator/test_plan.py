"""From a reply's calls to planned ones: whatever the model wrote has a place, and what cannot run says why."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coordinator.endpoint.reply import RawCall
from coordinator.session.plan import SUMMARY_CHARS, PlannedCall, plan, summarise
from tools.base import ErrorCode, RunContext, Tool, ToolFailure, ToolResult
from tools.own import BareParameters
from tools.registry import Registry, builtin_registry

REGISTRY = builtin_registry()


def planned(name: str, arguments: str | dict[str, Any] | None) -> PlannedCall:
    (call,) = plan([RawCall(0, "c0", name, arguments)], ["c0"], REGISTRY)
    return call


def refusal(call: PlannedCall) -> ToolFailure:
    assert call.refusal is not None
    assert call.parameters is None
    return call.refusal


def test_a_sound_call_carries_its_tool_and_arguments() -> None:
    call = planned("Read", '{"path": "a.py", "limit": 5}')

    assert call.refusal is None
    assert call.tool is REGISTRY.get("Read")
    assert call.arguments == {"path": "a.py", "limit": 5}
    assert call.timeout_s > 0


def test_only_what_the_model_gave_travels() -> None:
    assert planned("Read", '{"path": "a.py"}').arguments == {"path": "a.py"}


def test_an_object_is_taken_like_its_text() -> None:
    assert planned("Read", {"path": "a.py"}).arguments == planned("Read", '{"path": "a.py"}').arguments


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("{", "not JSON"),
        ("[1]", "an array"),
        ("null", "null"),
        ('"text"', "a text"),
        ("5", "the value 5"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "not JSON"),
        ("{}", "'path' is missing"),
        ("", "'path' is missing"),
        (None, "'path' is missing"),
        ('{"path": "x", "colour": 1}', "unknown argument 'colour'"),
        ('{"path": 1}', "path"),
        ('{"path": "x", "limit": true}', "limit"),
        ('{"path": "x", "limit": "5"}', "limit"),
    ],
)
def test_arguments_that_do_not_fit_name_the_fault_and_what_is_allowed(arguments: str | None, fault: str) -> None:
    failure = refusal(planned("Read", arguments))

    assert failure.code is ErrorCode.INVALID_PARAM
    assert fault in failure.message
    assert "Allowed arguments: path (string, required), offset" in failure.message


def test_a_value_outside_an_enum_lists_the_allowed_ones() -> None:
    failure = refusal(planned("Grep", '{"pattern": "x", "mode": "colours"}'))

    assert failure.code is ErrorCode.INVALID_PARAM
    assert '"files"' in failure.message


@pytest.mark.parametrize("name", ["read", "Delete", "", "Read ", "\ud800"])
def test_an_unknown_tool_is_refused_with_the_known_ones(name: str) -> None:
    failure = refusal(planned(name, "{}"))

    assert failure.code is ErrorCode.UNKNOWN_TOOL
    assert "Known tools: Bash, BashOutput, Edit, Glob, Grep, KillBash, Read, Task, TodoWrite, Write." in failure.message


def test_a_refused_call_does_not_stop_the_later_ones() -> None:
    raw = [RawCall(0, "a", "Read", "{"), RawCall(1, "b", "Nope", "{}"), RawCall(2, "c", "Read", '{"path":"x"}')]

    calls = plan(raw, ["a", "b", "c"], REGISTRY)

    assert [call.refusal is None for call in calls] == [False, False, True]
    assert [call.index for call in calls] == [0, 1, 2]


def test_two_calls_with_one_id_stay_two_calls() -> None:
    raw = [RawCall(index, "same", "Read", {"path": name}) for index, name in enumerate("ab")]

    calls = plan(raw, ["same", "same"], REGISTRY)

    assert [(call.index, call.call_id, call.arguments["path"]) for call in calls] == [
        (0, "same", "a"),
        (1, "same", "b"),
    ]


def test_ids_that_do_not_fit_the_calls_are_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        plan([RawCall(0, "a", "Read", "{}")], [], REGISTRY)


def test_reading_is_safe_beside_others_and_the_rest_is_not() -> None:
    assert planned("Read", {"path": "x"}).is_concurrency_safe
    assert planned("Grep", {"pattern": "x"}).is_concurrency_safe
    assert planned("Glob", {"pattern": "x"}).is_concurrency_safe
    assert not planned("Bash", {"command": "ls"}).is_concurrency_safe
    assert not planned("Write", {"path": "x", "content": ""}).is_concurrency_safe
    assert not planned("Read", "{").is_concurrency_safe
    assert not planned("Nope", "{}").is_concurrency_safe


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ('{"path": "a.py", "limit": 3}', "a.py"),
        ('{"limit": 3, "path": "a.py"}', "a.py"),
        ({"command": "make\n  all"}, "make all"),
        ('{"limit": 3}', '{"limit": 3}'),
        ("", ""),
        (None, ""),
        ("{broken\nstill", "{broken still"),
        ("[1, 2]", "[1, 2]"),
        ({"command": "é" * 500}, "é" * (SUMMARY_CHARS - 1) + "…"),
    ],
)
def test_a_summary_is_one_short_line(arguments: str | dict[str, Any] | None, line: str) -> None:
    assert summarise(arguments) == line


@given(st.text() | st.dictionaries(st.text(), st.text() | st.integers()) | st.none())
def test_anything_has_a_summary_and_a_place(arguments: str | dict[str, Any] | None) -> None:
    call = planned("Bash", arguments)

    assert len(call.summary) <= SUMMARY_CHARS
    assert "\n" not in call.summary
    assert (call.refusal is None) != (call.parameters is None)
    json.dumps(call.arguments)


def test_a_summary_of_bottomless_nesting_is_short_too() -> None:
    assert len(summarise('{"a":' * 100_000)) == SUMMARY_CHARS


class _Asked(Tool[BaseModel]):
    """A tool of a user's that breaks when it is asked about its arguments."""

    name = "Asked"
    description = "Ask."
    parameters = BareParameters

    def is_concurrency_safe(self, arguments: BaseModel) -> bool:
        raise KeyError("broken")

    def run(self, arguments: BaseModel, context: RunContext) -> ToolResult:
        raise AssertionError("not run")


def test_a_tool_that_breaks_when_asked_is_refused_and_its_neighbours_are_planned() -> None:
    registry = Registry([_Asked(), *builtin_registry().tools()])
    raw = (RawCall(0, "a", "Asked", '{"input": "x"}'), RawCall(1, "b", "Read", '{"path": "x"}'))
    asked, read = plan(raw, ["a", "b"], registry)

    assert asked.refusal is not None
    assert asked.refusal.code is ErrorCode.INTERNAL_ERROR
    assert "raised KeyError" in asked.refusal.message
    assert read.refusal is None


def test_null_is_the_default_where_the_schemas_were_strict() -> None:
    raw = (RawCall(0, "a", "Read", '{"path": "x", "offset": null, "limit": 3}'),)
    (plain,) = plan(raw, ["a"], builtin_registry())
    (strict,) = plan(raw, ["a"], builtin_registry(), strict=True)

    assert plain.refusal is not None
    assert strict.arguments == {"path": "x", "limit": 3}
