"""The language of the link: frames, operations, refusal codes. Standard library only; both ends import it.

A frame is two big-endian 32-bit lengths, a head (one compact JSON object) and a body (raw bytes):
`>II` head length, body length · head · body.
"""

from __future__ import annotations

import json
import struct
from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

PROTOCOL = 1
MAX_HEAD_BYTES = 256 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_COMMAND_BYTES = 100_000
MAX_KEEP_BYTES = 1024 * 1024
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Of a command's output so much is streamed to the host unless it asks for more or less."""
MAX_READ_BYTES = 8 * 1024 * 1024
OUT_CHUNK_BYTES = 64 * 1024
STREAM_THRESHOLD_BYTES = 32 * 1024
"""A command that prints more than this has all its output streamed as `out` events, if asked to."""

PROXY_PORT = 3128
"""Where the guest listens on the box's loopback when the box has egress."""
STREAMS_MAX = 64
"""How many streams a guest may have open at once."""
STREAM_WINDOW = 64 * 1024
"""How much of one stream may be on its way in each direction, as counted by `stream_cost`."""
STREAM_CHUNK_BYTES = 16 * 1024
"""At most so much in one frame, so that calls get between."""
STREAM_FRAME_COST = 512
PIPES_MAX = 32
"""How many commands with pipes a box may have at once."""
CONNECTIONS_MAX = 64
"""How many connections to ports of its loopback a box may have from the host at once."""
TTY_MOST = 1000
"""A terminal has no more rows or columns."""
PIPE_ERROR_BYTES = 4096
"""How much of the end of what such a command says on standard error is kept."""

WORKSPACE = "/workspace"
SPILL = "/spill"
GUEST_FOLDER = "/opt/sandhog"
SOCKET_DIR = "/run/sandhog"
SOCKET_PATH = "/run/sandhog/guest.sock"
DOOR_DIR = "/run/sandhog/door"
DOOR_PATH = "/run/sandhog/door/host.sock"
"""Where the worker listens, in boxes that have a door."""
HOME = "/home/agent"
RG = GUEST_FOLDER + "/bin/rg"

_PREFIX = struct.Struct(">II")
# Made once: the functions of the module make one for each text.
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_DECODER = json.JSONDecoder()


class Op(StrEnum):
    """What the host may ask."""

    HELLO = "hello"
    PING = "ping"
    BEGIN_STEP = "begin_step"
    RUN = "run"
    PIPE_OPEN = "pipe_open"
    PIPE_CONNECT = "pipe_connect"
    CANCEL = "cancel"
    BACKGROUND_READ = "background_read"
    BACKGROUND_LIST = "background_list"
    BACKGROUND_KILL = "background_kill"
    FREEZE = "freeze"
    THAW = "thaw"
    STAT = "stat"
    READ = "read"
    EDIT = "edit"
    WRITE = "write"
    SHUTDOWN = "shutdown"


class StreamOp(StrEnum):
    """What a frame with `stream_id` (a number the guest gave) and `do` in its head means; both ends send them.

    The guest numbers its streams upwards and opens them; a frame for a stream that is closed already is ignored.
    """

    OPEN = "open"
    """From the guest only: a client of the proxy port connected."""
    DATA = "data"
    """The body belongs to the stream. The sender has used up `stream_cost` of its credit, `STREAM_WINDOW` at first."""
    CREDIT = "credit"
    """`n` more may be sent."""
    END = "end"
    """The sender sends no more; the other direction goes on."""
    CLOSE = "close"
    """The stream is over in both directions."""


class PipeOp(StrEnum):
    """What a frame with `pipe_id` (a number that the host gave) and `do` in its head means.

    A pipe is a command (`pipe_open`) whose standard input and output the host has, with `tty` on a terminal of its own,
    or a connection (`pipe_connect`) to a port of the box's loopback. It ends with its link, and in each direction as
    much may be on its way as with a stream. A frame for a pipe that is closed already is ignored.
    """

    DATA = "data"
    """The body is for standard input or the port, or from standard output or the port."""
    ERRORS = "errors"
    """From the guest: the body is from standard error, of a command that was started with `errors`. Costs as data."""
    CREDIT = "credit"
    """`n` more may be sent."""
    RESIZE = "resize"
    """From the host: the command's terminal has `rows` and `cols` now."""
    END = "end"
    """From the host: nothing more comes on standard input, or for the port. From the guest, of a connection: nothing
    more comes from the port."""
    CLOSE = "close"
    """From the host: end the command or connection. From the guest: it has ended, a command with `exit_code` or
    `signal`, or `error` for one that could not be started or a connection that broke; the body is the end of what a
    command said on standard error."""


def stream_cost(size_bytes: int) -> int:
    """What a data frame takes of the window: more than its bytes, so that tiny frames are bounded too."""
    return size_bytes + STREAM_FRAME_COST


class RefusalCode(StrEnum):
    """Why the guest declined a request."""

    NOT_FOUND = "NOT_FOUND"
    IS_DIRECTORY = "IS_DIRECTORY"
    NOT_DIRECTORY = "NOT_DIRECTORY"
    NOT_REGULAR = "NOT_REGULAR"
    """A FIFO, device or socket."""
    BINARY_FILE = "BINARY_FILE"
    ACCESS_DENIED = "ACCESS_DENIED"
    SYMLINK_LOOP = "SYMLINK_LOOP"
    INVALID_PATH = "INVALID_PATH"
    """NUL in it, empty, or too long."""
    TOO_LARGE = "TOO_LARGE"
    NO_SPACE = "NO_SPACE"
    IO_ERROR = "IO_ERROR"
    CONFLICT = "CONFLICT"
    """The file is not what the caller saw."""
    EXISTS = "EXISTS"
    """The file was to be new."""
    NO_MATCH = "NO_MATCH"
    """The old text of an edit is not in the file."""
    NOT_UNIQUE = "NOT_UNIQUE"
    """The old text of an edit is in the file more than once; the message has the count."""
    OVERLAP = "OVERLAP"
    """Two edits touch the same text."""
    INVALID_PARAM = "INVALID_PARAM"
    CALL_MISMATCH = "CALL_MISMATCH"
    """The call key is known with other arguments."""
    UNKNOWN_CALL = "UNKNOWN_CALL"
    """Asked to join a call that the guest does not know."""
    ANSWER_DROPPED = "ANSWER_DROPPED"
    """The call ran, its answer is no longer kept."""
    STALE = "STALE"
    """An older generation or an earlier step of the session."""
    LIMIT = "LIMIT"
    """No process or descriptor left in the box."""
    NO_SHELL = "NO_SHELL"
    """The image has no shell to run a command text."""
    FROZEN = "FROZEN"
    """Commands stand still until the host thaws them."""
    INTERNAL = "INTERNAL"
    """A defect of the guest; the message has the exception."""


class FrameError(Exception):
    """Bytes that are not a frame, or a frame that may not be sent."""


class FrameTooLarge(FrameError):
    """A head or body beyond its limit."""


class MalformedFrame(FrameError):
    """A head that is not one JSON object."""


class BadStreamFrame(FrameError):
    """A frame of a stream against the rules of `StreamOp`."""


class Frame:
    """One message."""

    __slots__ = ("body", "head")

    def __init__(self, head: dict[str, Any], body: bytes) -> None:
        self.head = head
        self.body = body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and (self.head, self.body) == (other.head, other.body)

    __hash__ = None  # type: ignore[assignment]


def encode(head: dict[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one frame.

    Raises:
        FrameTooLarge: head or body are beyond their limits.
    """
    text = _ENCODER.encode(head).encode()
    if len(text) > MAX_HEAD_BYTES or len(body) > MAX_BODY_BYTES:
        raise FrameTooLarge(f"head of {len(text)} and body of {len(body)} bytes")
    return b"".join((_PREFIX.pack(len(text), len(body)), text, body))


class Decoder:
    """Frames out of chunks of any size. After an error it must not be used again."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _PREFIX.size

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order.

        Raises:
            FrameTooLarge: a length beyond its limit was announced (nothing is buffered for it).
            MalformedFrame: a head is not one JSON object.
        """
        if not self._buffer and len(data) >= _PREFIX.size:
            # Most often one whole frame comes at once.
            head_size, body_size = _PREFIX.unpack_from(data)
            if len(data) == _PREFIX.size + head_size + body_size and _is_allowed(head_size, body_size):
                body_start = _PREFIX.size + head_size
                return [Frame(_parse_head(data[_PREFIX.size : body_start]), data[body_start:])]
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while True:
            left = len(buffer) - position
            if left < self._needed or left < _PREFIX.size:
                break
            head_size, body_size = _PREFIX.unpack_from(buffer, position)
            if not _is_allowed(head_size, body_size):
                raise FrameTooLarge(f"announced head of {head_size} and body of {body_size} bytes")
            whole = _PREFIX.size + head_size + body_size
            if left < whole:
                self._needed = whole
                break
            body_start = position + _PREFIX.size + head_size
            head = _parse_head(bytes(buffer[position + _PREFIX.size : body_start]))
            # By a view: a slice of the buffer would be a copy of its own beside the body.
            with memoryview(buffer) as view:
                frames.append(Frame(head, bytes(view[body_start : position + whole])))
            position += whole
            self._needed = _PREFIX.size
        if position:
            del buffer[:position]
        return frames

    @property
    def buffered_bytes(self) -> int:
        """How much of an unfinished frame is held."""
        return len(self._buffer)


def _is_allowed(head_size: int, body_size: int) -> bool:
    return head_size <= MAX_HEAD_BYTES and body_size <= MAX_BODY_BYTES


def _parse_head(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
        head, end = _DECODER.raw_decode(text)
        if end != len(text):
            raise ValueError(f"something follows it at {end}")
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"head is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise MalformedFrame(f"head is a JSON {type(head).__name__}, not an object")
    return head
