"""What a terminal and a node say to each other of a box: terminal → **channel** → node → box.

A channel is a pair of Redis streams, for as long as one command at a terminal runs. Its frames carry pipes: commands in
the box, or connections to it, each under a window from end to end. So no more lies in Redis than the windows allow.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.contract.orders import Contract

WINDOW = 64 * 1024
"""How much of one pipe may be on its way in each direction, as counted by `frame_cost`. This and the following are the
box's own bounds: a node only passes frames on."""
CHUNK_BYTES = 16 * 1024
"""At most so much in one frame."""
FRAME_COST = 512
TTY_MOST = 1000
"""A terminal has no more rows or columns."""
BEAT_S = 5.0
"""How often each side says that it is there."""
SILENT_S = 20.0
"""Who has said nothing for so long is gone."""
TERM_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"

Rows = Annotated[int, Field(gt=0, le=TTY_MOST)]


def frame_cost(size_bytes: int) -> int:
    """Return what a frame of data takes of its pipe's window: tiny ones are bounded too."""
    return size_bytes + FRAME_COST


class ChannelOrder(Contract):
    """Asks a node to serve a channel; what it is to do comes over the channel."""

    channel: str = Field(pattern=r"^[0-9a-f]{32}$")
    session: str
    purpose: str
    """Of the command at the terminal, for the log."""
    actor: str
    """Who sits there."""


class Size(BaseModel):
    """The size of a terminal."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rows: Rows
    cols: Rows


class Command(BaseModel):
    """A command in the box's workspace, as the agent's user."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    kind: Literal["command"] = "command"
    argv: tuple[str, ...] = ()
    """Without any the image's shell."""
    size: Size | None = None
    """Its terminal's; None is a command with pipes."""
    term: str = Field(default="dumb", pattern=TERM_PATTERN)
    """The terminal's kind."""


class PackTree(BaseModel):
    """A file or directory of the box, as a tar on standard output."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    kind: Literal["pack"] = "pack"
    path: str
    """Relative to the workspace, or absolute."""


class UnpackTree(BaseModel):
    """A tar on standard input, of one file or directory, to be put into the box."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    kind: Literal["unpack"] = "unpack"
    path: str
    """A directory to put it in, or its new name in a directory."""


class Connection(BaseModel):
    """A connection to a port of the box's loopback."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["connection"] = "connection"
    port: int = Field(gt=0, lt=65_536)


Wanted = Annotated[Command | PackTree | UnpackTree | Connection, Field(discriminator="kind")]


class Do(StrEnum):
    """What a frame means."""

    OPEN = "open"
    """From the terminal: start the pipe that `wanted` says."""
    OPENED = "opened"
    """From the node: it is."""
    DATA = "data"
    ERRORS = "errors"
    """From the node: what a command said on standard error."""
    CREDIT = "credit"
    """`n` more may be sent."""
    RESIZE = "resize"
    """From the terminal: it has `size` now."""
    END = "end"
    """Nothing more comes from the sender; the other direction goes on."""
    CLOSE = "close"
    """From the terminal: end the pipe. From the node: it has ended, or cannot be opened, in `words`."""
    BEAT = "beat"
    """The sender is there."""
    OVER = "over"
    """The channel is over, in `words`; nothing comes behind it."""


class ChannelFrame(BaseModel):
    """One message of a channel; its body travels beside it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    do: Do
    pipe: int = Field(default=0, ge=0)
    """Number that the terminal gave; 0 is the channel itself."""
    wanted: Wanted | None = None
    n: int = Field(default=0, ge=0, le=WINDOW)
    size: Size | None = None
    words: str = ""
    """Why, for people. Partly the box's own, which nobody vouches for."""
    exit_code: int | None = None
    signal: int | None = None
    """How a command ended; both are None where that was not seen."""

    def fields(self, body: bytes = b"") -> dict[str | bytes, str | bytes]:
        """Return the frame with its body as the fields of an entry."""
        return {"head": self.model_dump_json(exclude_none=True), "body": body}


class BadFrame(Exception):
    """An entry of a stream that is no frame."""


def read_frame(fields: Mapping[bytes, bytes]) -> tuple[ChannelFrame, bytes]:
    """Return the frame and its body that an entry holds.

    Raises:
        BadFrame: it holds none.
    """
    body = fields.get(b"body", b"")
    if len(body) > CHUNK_BYTES:
        raise BadFrame(f"a frame of {len(body)} bytes")
    try:
        return ChannelFrame.model_validate_json(fields.get(b"head", b"")), body
    except ValidationError as exc:
        raise BadFrame("an entry that is no frame") from exc
