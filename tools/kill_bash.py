"""KillBash: ends a background command with all its processes."""

from typing import ClassVar, Literal

from pydantic import Field

from tools.background import known_only, news, state_notes
from tools.base import Parameters, RunContext, Stats, Tool, ToolResult
from tools.refusals import refusals_as_failures


class KillBashParameters(Parameters):
    """Arguments of KillBash."""

    id: str = Field(min_length=1)
    """Id of the background command, such as `bg1`."""


class KillBash(Tool[KillBashParameters]):
    """Ends a background command."""

    name = "KillBash"
    description = (
        "End a background command and everything it started: asked to end first, killed half a second later. Answers "
        "what it printed last."
    )
    parameters = KillBashParameters
    # It changes no files, and ends nothing but what the session was allowed to start.
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"
    is_bounded = True

    def run(self, arguments: KillBashParameters, context: RunContext) -> ToolResult:
        """Return what was printed last; `partial` when some of it does not end. No error when it had ended before."""
        with known_only(context, arguments.id), refusals_as_failures():
            context.box.kill_background(context.mark.session, arguments.id)
        found = news(context, arguments.id)
        text = found.text.removesuffix("\n")
        return ToolResult(
            status="partial" if found.state.is_running else "success",
            text="\n".join([*([text] if text else []), *state_notes(found)]),
            data=found.data(),
            stats=Stats(bytes=found.new_bytes),
        )
