"""Commands that hurt themselves, and what their answers must then say: fault → **next command** → checker."""

from collections.abc import Mapping
from dataclasses import dataclass

PROFILE = "chaos"
"""Of all boxes."""
BOX_MEMORY = "256MiB"
"""Of each box: little, so that a command soon has had more."""


@dataclass(frozen=True)
class CommandHarm:
    """What stands between a command's line in the log and its last words."""

    part: str
    """Its text."""
    says: str
    """Stands in an answer as success; "" where there can be none."""
    timeout_ms: int | None = None
    """None: the tool's own."""


COMMAND_HARMS: Mapping[str, CommandHarm] = {
    "command_out_of_memory": CommandHarm("tail /dev/zero", "the kernel killed 1 process"),
    "command_timed_out": CommandHarm("sleep 600", "", timeout_ms=700),
    "command_flooding": CommandHarm("yes flood | head -c 3000000", "left out here"),
}
"""By kind of fault."""


def harm_in(command: str) -> str:
    """Return what kind of harm a command does itself; "" for none."""
    return next((kind for kind, harm in COMMAND_HARMS.items() if harm.part in command), "")
