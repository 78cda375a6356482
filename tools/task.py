"""Task: gives a part of the work to a sub-agent. It runs in the coordinator, which alone can ask the model."""

from typing import Literal, NoReturn

from pydantic import Field

from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure

TASK_TOOL = "Task"


class TaskParameters(Parameters):
    """Arguments of Task."""

    description: str = Field(min_length=1, max_length=80)
    """What it is about, in three to six words."""
    prompt: str = Field(min_length=1, max_length=40_000)
    """All that the sub-agent must know, and what it is to answer: it sees nothing of your conversation."""
    profile: Literal["explore", "general"] = "explore"
    """explore only reads; general may do what you may do."""


class Task(Tool[TaskParameters]):
    """A child session in the same box, with a history of its own."""

    name = TASK_TOOL
    description = (
        "Give a part of the work to a sub-agent in the same sandbox and get its final answer. It has a conversation of "
        "its own, so that long searches do not fill yours. Several explore tasks in one reply run at the same time; "
        "general ones run alone, and what they change is there for you."
    )
    parameters = TaskParameters
    runs_on = "coordinator"
    effect = "reads"
    """By itself it changes nothing: each call of the sub-agent is decided like one of the session's own."""

    def is_concurrency_safe(self, arguments: TaskParameters) -> bool:
        """Only what reads may run beside others."""
        return arguments.profile == "explore"

    def run(self, arguments: TaskParameters, context: RunContext) -> NoReturn:
        """Refuse: there is no model in a box.

        Raises:
            ToolFailure: always.
        """
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, "Task runs in the coordinator.")
