"""What a box can be asked, and what it answers. Paths are paths inside the box."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.wire import MAX_STREAM_BYTES


@dataclass(frozen=True)
class CallMark:
    """Which call a request belongs to; what makes it run at most once."""

    key: str
    """Names the call: a key the guest knows is answered or joined, never run again."""
    digest: str
    """Hash of tool and arguments: a known key with another digest is refused (CALL_MISMATCH)."""
    session: str
    generation: int
    """Lower than one the guest has seen for this session: refused (STALE)."""
    step: int
    """A later step drops the answers of earlier ones; an earlier step is refused (STALE)."""
    join: bool = False
    """Only fetch: a known call is answered or waited for, an unknown one is refused (UNKNOWN_CALL)."""


@dataclass(frozen=True)
class RunRequest:
    """A command to run: `command` (text for the shell, keeps the session's cwd) or `argv` (no shell)."""

    mark: CallMark
    command: str | None = None
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    """Where to run, relative to the session's cwd; None is the session's cwd."""
    timeout_ms: int = 120_000
    keep_bytes: int = 65_536
    """How much of the head, and again of the tail, of each stream the answer holds. At most 1 MiB."""
    env: Mapping[str, str] = field(default_factory=dict)
    background: bool = False
    """Answered as soon as it runs; `timeout_ms` is not for it, and its output is read by `Box.background_output`."""
    stream_bytes: int = MAX_STREAM_BYTES
    """How much of the output `on_output` gets at most."""


@dataclass(frozen=True)
class Capture:
    """What one output stream printed, the middle left out when it was too much."""

    head: bytes
    tail: bytes
    """Empty when nothing was dropped."""
    total_bytes: int
    total_lines: int
    """A last line without a newline counts."""
    dropped_bytes: int
    """How much lies between head and tail."""

    def text(self) -> str:
        """Head and tail as text, undecodable bytes replaced, a gap of dropped bytes named."""
        head = self.head.decode("utf-8", "replace")
        if not self.dropped_bytes:
            return head + self.tail.decode("utf-8", "replace")
        tail = self.tail.decode("utf-8", "replace")
        return f"{head}\n[... {self.dropped_bytes} bytes left out ...]\n{tail}"


@dataclass(frozen=True)
class RunAnswer:
    """How a command ended. Exactly one of exit_code and signal is set unless its end was not seen."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    cancelled: bool
    oom_kills: int
    """Processes of the box that the kernel killed for memory while this command ran."""
    stdout: Capture
    stderr: Capture
    duration_ms: float
    cwd: str
    """The session's cwd after the command."""
    left_running: tuple[int, ...]
    """Processes of this command that live on in the background."""
    background_id: str | None
    """Name of the background command that this one, or what it left running, is from now on."""
    killed_leftovers: bool
    """The process table was full: what earlier calls had left running was killed to make room."""
    spill_complete: bool
    """Everything printed was streamed to `on_output` (or nothing had to be streamed)."""
    streamed: bool = False
    """More was printed than the stream threshold, so `on_output` got it all from the beginning."""
    stream_cut: bool = False
    """More was printed than `stream_bytes`; `on_output` got the beginning."""
    refused_tasks: int = 0
    """How often no process or thread could be made while this command ran: the box had as many as it may."""
    full: tuple[str, ...] = ()
    """Places of the box without room at the end of a command that failed."""


@dataclass(frozen=True)
class Background:
    """A command whose call was answered while it, or what it had started, still ran."""

    background_id: str
    session: str
    command: str
    """The beginning of its text."""
    is_running: bool
    """A process of it lives."""
    is_leftover: bool
    """A foreground command left it running; exit code and signal are that one's."""
    has_failed: bool
    """It could not be started."""
    was_killed: bool
    """It was ended by `kill_background`, by a cancel, or to make room for processes."""
    exit_code: int | None
    """Of its own process, which may end before what it started; both are None until then."""
    signal: int | None
    pids: tuple[int, ...]
    first_byte: int
    """Offset of the oldest byte of its output that is kept."""
    total_bytes: int
    """How much it has printed since it is in the background, both streams as they came."""
    age_ms: float


@dataclass(frozen=True)
class BackgroundOutput:
    """A part of what a background command printed."""

    state: Background
    start: int
    """Where `data` begins: later than asked for when the older output is gone."""
    data: bytes


@dataclass(frozen=True)
class Version:
    """What a file was when it was seen."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str
    """Hex digest of the content; "" when it was not read (stat)."""


@dataclass(frozen=True)
class ReadRequest:
    """Lines of a file."""

    mark: CallMark
    path: str
    offset: int = 1
    """First line, 1-based."""
    limit: int = 2000
    """How many lines."""
    max_bytes: int = 262_144
    """The text ends before the line that would go beyond; a first line longer than this is cut. At most 8 MiB."""


@dataclass(frozen=True)
class ReadAnswer:
    """The lines asked for, as the file's own bytes, UTF-16 as UTF-8 (with their newlines; lines end at LF only)."""

    path: str
    """Canonical."""
    version: Version
    text: bytes
    first_line: int
    last_line: int
    """`first_line - 1` when the file has no such line."""
    total_lines: int
    partial: bool
    """There is more in the file after what is given."""
    line_cut: bool
    """The only line given was longer than `max_bytes` and is cut."""
    encoding: str = ""
    """`utf-8-sig`, `utf-16-le` or `utf-16-be` by the file's byte order mark, "" without one; `text` of UTF-16 is
    UTF-8."""


@dataclass(frozen=True)
class StatAnswer:
    """What lies at a path."""

    path: str
    """Canonical."""
    kind: str
    """`file`, `directory`, `fifo`, `device`, `socket` or `missing`."""
    size: int
    version: Version | None
    """None when nothing is there. Its sha256 is empty: stat does not read."""


@dataclass(frozen=True)
class Edit:
    """One replacement; `old` must be in the file exactly once unless `replace_all`."""

    old: str
    new: str
    replace_all: bool = False


@dataclass(frozen=True)
class EditRequest:
    """Replacements in one file: all or none, each found in the file as it was before."""

    mark: CallMark
    path: str
    edits: tuple[Edit, ...]
    expected: Version | None
    """What the caller saw: another content is refused (CONFLICT). None compares nothing."""


@dataclass(frozen=True)
class EditAnswer:
    """What an edit did."""

    path: str
    version: Version
    replacements: int
    diff: str
    """Unified hunks without a file header."""
    diff_cut: bool
    other_names: int = 0
    """Other names (hard links) that the file had; they keep the old text."""


@dataclass(frozen=True)
class WriteRequest:
    """A whole file; missing parent directories are made."""

    mark: CallMark
    path: str
    content: bytes
    """At most 16 MiB."""
    expected: Version | None
    """What the caller saw: another content, or no file, is refused (CONFLICT). None compares nothing."""
    must_be_new: bool = False
    """An existing file is refused (EXISTS)."""


@dataclass(frozen=True)
class WriteAnswer:
    """What a write did."""

    path: str
    version: Version
    created: bool
    bytes: int
    other_names: int = 0
    """As of an edit."""


@dataclass(frozen=True)
class GuestInfo:
    """What the guest said of itself when the link was made."""

    protocol: int
    python: str
    machine: str
    shell: str
    """Path of the shell in the image that runs commands; "" when it has none."""
    uid: int
    gid: int
    frozen: bool
    """Commands stand still; `Box.thaw` lets them go on."""
    pids: int
    """Processes and threads in the box now."""
    facts: Mapping[str, str]
    """Limits and mounts as seen from inside, by name."""
