"""TodoWrite: the session's list of things to do, written anew each time. It runs in the coordinator, which keeps it."""

from typing import Literal, NoReturn

from pydantic import Field, field_validator

from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult

MOST_TODOS = 100


class Todo(Parameters):
    """One thing to do."""

    content: str = Field(min_length=1, max_length=500)
    """What is to be done, in one short line."""
    status: Literal["pending", "in_progress", "completed"]
    """in_progress for the one you work on now."""


class TodoWriteParameters(Parameters):
    """Arguments of TodoWrite."""

    todos: list[Todo] = Field(max_length=MOST_TODOS)
    """The whole list, in order; it takes the place of the one before. At most one may be in_progress."""

    @field_validator("todos")
    @classmethod
    def _has_one_in_progress(cls, todos: list[Todo]) -> list[Todo]:
        running = [todo.content for todo in todos if todo.status == "in_progress"]
        if len(running) > 1:
            raise ValueError(
                f"{len(running)} todos are in_progress, at most one may be: finish it or set it to pending first"
            )
        return todos


class TodoWrite(Tool[TodoWriteParameters]):
    """Keeps the model's own list; touches no file."""

    name = "TodoWrite"
    description = (
        "Write your list of things to do for this session. Use it for work of three steps or more: write the list "
        "first, keep exactly one entry in_progress while you work on it, and mark it completed as soon as it is done. "
        "Each call replaces the whole list."
    )
    parameters = TodoWriteParameters
    runs_on = "coordinator"
    effect = "reads"

    def run(self, arguments: TodoWriteParameters, context: RunContext) -> NoReturn:
        """Refuse: there is no session's list in a box.

        Raises:
            ToolFailure: always.
        """
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, "TodoWrite runs in the coordinator.")


def written(arguments: TodoWriteParameters) -> ToolResult:
    """Return the answer to a list that was kept."""
    counts = {status: 0 for status in ("completed", "in_progress", "pending")}
    for todo in arguments.todos:
        counts[todo.status] += 1
    now = next((todo.content for todo in arguments.todos if todo.status == "in_progress"), None)
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) + "."
    if not arguments.todos:
        text = "The list is empty."
    elif now is not None:
        text += f" Now: {now}"
    return ToolResult(status="success", text=text, data={**counts})
