"""TodoWrite: which lists are taken, and what is said of the others."""

from typing import Any

import pytest

from tools.base import ToolFailure
from tools.schema import function_schema, parse_arguments
from tools.todo_write import TodoWrite, TodoWriteParameters, written


def todo(content: str, status: str = "pending") -> dict[str, str]:
    return {"content": content, "status": status}


def parsed(*todos: dict[str, str]) -> TodoWriteParameters:
    parameters = parse_arguments(TodoWrite(), {"todos": list(todos)})
    assert isinstance(parameters, TodoWriteParameters)
    return parameters


def test_a_list_is_answered_with_where_it_stands() -> None:
    result = written(parsed(todo("a", "completed"), todo("b", "in_progress"), todo("c"), todo("d")))
    assert result.text == "1 completed, 1 in_progress, 2 pending. Now: b"
    assert result.data == {"completed": 1, "in_progress": 1, "pending": 2}


def test_an_empty_list_says_so() -> None:
    assert written(parsed()).text == "The list is empty."


@pytest.mark.parametrize(
    ("todos", "said"),
    [
        ([todo("a", "in_progress"), todo("b", "in_progress")], "2 todos are in_progress, at most one may be"),
        ([todo("a", "done")], "'pending', 'in_progress' or 'completed'"),
        ([todo("")], "todos.0.content"),
        ([{"content": "a"}], "'todos.0.status' is missing"),
        ([{**todo("a"), "id": "1"}], "unknown argument 'todos.0.id'"),
        ([todo("a")] * 101, "at most 100 items"),
        ([todo("x" * 501)], "at most 500 characters"),
    ],
)
def test_what_is_no_list_is_refused_with_what_is(todos: list[dict[str, str]], said: str) -> None:
    with pytest.raises(ToolFailure, match=said):
        parsed(*todos)


def test_it_touches_no_file_and_never_travels() -> None:
    assert TodoWrite.runs_on == "coordinator"
    assert TodoWrite.effect == "reads"
    with pytest.raises(ToolFailure, match="coordinator"):
        TodoWrite().run(parsed(), None)  # type: ignore[arg-type]  # there is no box


def test_its_schema_says_what_a_todo_is() -> None:
    parameters: Any = function_schema(TodoWrite())["function"]["parameters"]
    item = parameters["properties"]["todos"]["items"]
    assert item["additionalProperties"] is False
    assert item["properties"]["status"]["enum"] == ["pending", "in_progress", "completed"]
