"""Edit: replacements in one file, all or none."""

from typing import Self

from pydantic import Field, model_validator

from sandbox.requests import Edit as Replacement
from sandbox.requests import EditRequest
from tools.base import Parameters, RunContext, Stats, Tool, ToolResult
from tools.refusals import refusals_as_failures
from tools.seen import changing


class EditPair(Parameters):
    """One replacement."""

    old_string: str = Field(min_length=1)
    """Text to find, exactly as it is in the file, without Read's line numbers."""
    new_string: str
    """Text to put in its place; "" deletes."""
    replace_all: bool = False
    """Replace every occurrence; otherwise there must be exactly one."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.old_string == self.new_string:
            raise ValueError("old_string and new_string are the same: nothing would change")
        return self


class EditParameters(Parameters):
    """Arguments of Edit: one pair, or a list of pairs."""

    path: str = Field(min_length=1)
    """File to change; absolute, or relative to the working directory."""
    old_string: str | None = Field(default=None, min_length=1)
    """Text to find, exactly as it is in the file, without Read's line numbers. Not together with `edits`."""
    new_string: str | None = None
    """Text to put in its place; "" deletes. Not together with `edits`."""
    replace_all: bool = False
    """Replace every occurrence of `old_string`; otherwise there must be exactly one."""
    edits: list[EditPair] | None = Field(default=None, min_length=1, max_length=500)
    """Several replacements at once, each found in the file as it is now; all are made or none."""

    @model_validator(mode="after")
    def _is_one_form(self) -> Self:
        if self.edits is not None:
            if self.old_string is not None or self.new_string is not None or self.replace_all:
                raise ValueError("give either edits or old_string with new_string, not both")
        elif self.old_string is None or self.new_string is None:
            raise ValueError("give old_string and new_string, or edits")
        elif self.old_string == self.new_string:
            raise ValueError("old_string and new_string are the same: nothing would change")
        return self

    def replacements(self) -> tuple[Replacement, ...]:
        """Return the replacements, whichever form they came in."""
        if self.edits is not None:
            return tuple(Replacement(pair.old_string, pair.new_string, pair.replace_all) for pair in self.edits)
        return (Replacement(self.old_string or "", self.new_string or "", self.replace_all),)


def other_names(count: int) -> str:
    """Return what is to be said of a file's other names; "" without any."""
    if not count:
        return ""
    names = "one more name" if count == 1 else f"{count} more names"
    return f"\n[the file had {names} (hard links): what they name keeps the old text]"


class Edit(Tool[EditParameters]):
    """Replaces text in a file."""

    name = "Edit"
    description = (
        "Replace text in a file of the sandbox that was Read before. `old_string` must be in the file exactly once "
        "unless `replace_all` is set. Several replacements of one file go into `edits`: all are made or none. "
        "Encoding, line ends and mode are kept. The answer shows the diff."
    )
    parameters = EditParameters

    def run(self, arguments: EditParameters, context: RunContext) -> ToolResult:
        """Return how much was replaced, and the diff."""
        with (
            refusals_as_failures(),
            changing(context.seen, context.box, context.mark, arguments.path, whole=False) as change,
        ):
            request = EditRequest(context.mark, change.path, arguments.replacements(), change.expected)
            answer = context.box.edit(request)
            change.done(answer.path, answer.version)
        count = "1 replacement" if answer.replacements == 1 else f"{answer.replacements} replacements"
        more = "\n[the diff goes on; Read the file to see all]" if answer.diff_cut else ""
        return ToolResult(
            status="success",
            text=f"Edited {answer.path}: {count}.\n{answer.diff}{more}{other_names(answer.other_names)}",
            data={"path": answer.path, "replacements": answer.replacements},
            stats=Stats(bytes=answer.version.size),
        )
