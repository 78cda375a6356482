"""BashOutput: what a background command has printed since the last look."""

from typing import ClassVar, Literal

from pydantic import Field

from tools.background import news, state_notes
from tools.base import Parameters, RunContext, Stats, Tool, ToolResult


class BashOutputParameters(Parameters):
    """Arguments of BashOutput."""

    id: str = Field(min_length=1)
    """Id of the background command, such as `bg1`."""


class BashOutput(Tool[BashOutputParameters]):
    """Shows new output of a background command."""

    name = "BashOutput"
    description = (
        "Show what a background command has printed since you last looked, stdout and stderr together, and its exit "
        "code once it has ended. Does not wait: with nothing new, do something else or `sleep` in Bash first."
    )
    parameters = BashOutputParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"
    is_bounded = True

    def run(self, arguments: BashOutputParameters, context: RunContext) -> ToolResult:
        """Return the new output; `partial` when some is lost or the command did not end well."""
        found = news(context, arguments.id)
        state = found.state
        text = found.text.removesuffix("\n") if found.text else "(no new output)"
        is_well = state.is_running or state.is_leftover or state.exit_code == 0
        return ToolResult(
            status="success" if is_well and not found.lost_bytes else "partial",
            text="\n".join([text, *state_notes(found)]),
            data=found.data(),
            stats=Stats(bytes=found.new_bytes),
        )
