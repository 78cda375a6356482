"""What a node and the child process of an own tool's call say to each other: one JSON object a line.

node → child: one `Job`, then a `BoxSaid` for every `AskBox`. child → node: `Ready`, any number of `AskBox`, and at
the end `Result` or `Failed`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from tools.base import ErrorCode

LINE_BYTES = 64 * 1024 * 1024
"""The longest line that is taken from a child: as much as a spill holds."""


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OwnLimits(_Said):
    """What the processes of one call may take."""

    memory_bytes: int = 4096 * 1024 * 1024
    """Address space of each process."""
    processes: int = 256
    """Processes and threads together; holds only where the call has a user of its own."""


OWN_LIMITS = OwnLimits()


class Job(_Said):
    """What a child runs."""

    tool: str
    arguments: dict[str, JsonValue]
    principal: str
    attributes: dict[str, str]
    session: str
    call_key: str
    secrets: dict[str, str] = Field(repr=False)
    files: tuple[str, ...]
    """Tool files to load, beside what installed packages bring."""
    digest: str
    """Of the tools as the node knows them; a child that loads others runs nothing."""
    home: str
    """Its private directory, which it gives to its own user."""
    has_own_user: bool
    """Run as the user id that belongs to the child's process id, see `own_uid`."""
    limits: OwnLimits = OWN_LIMITS


class BoxSaid(_Said):
    """How a command in the box ended, or why it did not run."""

    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    code: ErrorCode | None = None
    """Set when it did not run; `message` says why."""
    message: str = ""


class Ready(_Said):
    """The tool is loaded and the child has given up its rights; its time begins."""

    kind: Literal["ready"] = "ready"


class AskBox(_Said):
    """A command for the session's box."""

    kind: Literal["ask_box"] = "ask_box"
    command: str | list[str]
    timeout_s: float


class Result(_Said):
    """The tool's result, as the JSON of a ToolResult."""

    kind: Literal["result"] = "result"
    result: dict[str, JsonValue]


class Failed(_Said):
    """There is no result."""

    kind: Literal["failed"] = "failed"
    code: ErrorCode
    message: str


FROM_CHILD: TypeAdapter[Ready | AskBox | Result | Failed] = TypeAdapter(
    Annotated[Ready | AskBox | Result | Failed, Field(discriminator="kind")]
)


def line(said: BaseModel) -> bytes:
    """Return one line of the wire."""
    return said.model_dump_json().encode() + b"\n"


FIRST_OWN_UID = 2_000_000_000
"""Above the ids of boxes' agents; with any process id added it stays below 2³¹."""


def own_uid(pid: int) -> int:
    """Return the user and group id of a child: no other living process of this machine has it."""
    return FIRST_OWN_UID + pid
