"""Answers of the guest, checked field by field: what does not have the right type or range is a violation."""

from typing import Any

from sandbox.errors import GuestRefused
from sandbox.requests import (
    Background,
    BackgroundOutput,
    Capture,
    EditAnswer,
    GuestInfo,
    ReadAnswer,
    RunAnswer,
    StatAnswer,
    Version,
    WriteAnswer,
)
from sandbox.wire import HOME, WORKSPACE, Frame, RefusalCode

MAX_TEXT = 8192
MAX_NAME = 64
MAX_PIDS = 100
MAX_BACKGROUNDS = 10_000
PLACES = (WORKSPACE, HOME, "/tmp", "/dev/shm")
ENCODINGS = ("", "utf-8-sig", "utf-16-le", "utf-16-be")
KINDS = ("file", "directory", "fifo", "device", "socket", "missing")


class BadReply(Exception):
    """The guest broke the rules of the link."""


def _text(head: dict[str, Any], name: str, limit: int = MAX_TEXT) -> str:
    value = head.get(name)
    if not isinstance(value, str) or len(value) > limit:
        raise BadReply(f"{name} is not a text of at most {limit} characters")
    if value.isascii():
        return value
    try:
        # File names may hold bytes that are no UTF-8; above this line they are shown, not carried.
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        raise BadReply(f"{name} has characters that are none") from None


def _name(head: dict[str, Any], name: str) -> str:
    """A word that may become part of a file's name."""
    value = _text(head, name, MAX_NAME)
    if not (value.isascii() and value.isalnum()):
        raise BadReply(f"{name} is not a word of letters and digits")
    return value


def _number(head: dict[str, Any], name: str, low: int = 0, high: int = 2**63) -> int:
    value = head.get(name)
    if type(value) is not int or not low <= value <= high:
        raise BadReply(f"{name} is not a whole number from {low} to {high}")
    return value


def _flag(head: dict[str, Any], name: str) -> bool:
    value = head.get(name)
    if not isinstance(value, bool):
        raise BadReply(f"{name} is neither true nor false")
    return value


def _part(head: dict[str, Any], name: str) -> dict[str, Any]:
    value = head.get(name)
    if not isinstance(value, dict):
        raise BadReply(f"{name} is not an object")
    return value


def _maybe_number(head: dict[str, Any], name: str, low: int, high: int) -> int | None:
    return None if head.get(name) is None else _number(head, name, low, high)


def _duration(head: dict[str, Any], name: str) -> float:
    value = head.get(name)
    if not isinstance(value, float) or not 0 <= value < 1e12:
        raise BadReply(f"{name} is not a duration")
    return value


def _pids(head: dict[str, Any], name: str) -> tuple[int, ...]:
    value = head.get(name)
    if not isinstance(value, list) or len(value) > MAX_PIDS or not all(type(pid) is int for pid in value):
        raise BadReply(f"{name} is not a list of process ids")
    return tuple(value)


def check_refusal(frame: Frame) -> None:
    """Raise when the guest declined.

    Raises:
        GuestRefused: it did.
        BadReply: with a code that does not exist.
    """
    if "refused" not in frame.head:
        return
    try:
        code = RefusalCode(_text(frame.head, "refused"))
    except ValueError as error:
        raise BadReply(str(error)) from None
    raise GuestRefused(code, _text(frame.head, "message"))


def parse_version(head: dict[str, Any], name: str = "version") -> Version:
    """A file's version."""
    part = _part(head, name)
    digest = _text(part, "sha256", 64)
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise BadReply("sha256 is not a digest")
    return Version(
        dev=_number(part, "dev", 0, 2**64),
        ino=_number(part, "ino", 0, 2**64),
        size=_number(part, "size"),
        mtime_ns=_number(part, "mtime_ns", -(2**63)),
        ctime_ns=_number(part, "ctime_ns", -(2**63)),
        sha256=digest,
    )


def parse_run(frame: Frame, keep_bytes: int) -> RunAnswer:
    """The end of a command."""
    head = frame.head
    sizes = [_number(_part(head, stream), part) for stream in ("stdout", "stderr") for part in ("head", "tail")]
    if sum(sizes) != len(frame.body) or max(sizes) > 2 * keep_bytes:
        raise BadReply("the captured output does not fit the body")
    return RunAnswer(
        exit_code=_maybe_number(head, "exit_code", 0, 255),
        signal=_maybe_number(head, "signal", 1, 128),
        timed_out=_flag(head, "timed_out"),
        cancelled=_flag(head, "cancelled"),
        oom_kills=_number(head, "oom_kills"),
        stdout=_capture(_part(head, "stdout"), frame.body[: sizes[0] + sizes[1]]),
        stderr=_capture(_part(head, "stderr"), frame.body[sizes[0] + sizes[1] :]),
        duration_ms=_duration(head, "duration_ms"),
        cwd=_text(head, "cwd"),
        left_running=_pids(head, "left_running"),
        background_id=None if head.get("background_id") is None else _name(head, "background_id"),
        killed_leftovers=_flag(head, "killed_leftovers"),
        spill_complete=_flag(head, "spill_complete"),
        streamed=_flag(head, "streamed"),
        stream_cut=head.get("stream_cut") is True,
        # An older guest says nothing of the two.
        refused_tasks=_number(head, "refused_tasks") if "refused_tasks" in head else 0,
        full=_places(head, "full") if "full" in head else (),
    )


def _places(head: dict[str, Any], name: str) -> tuple[str, ...]:
    value = head.get(name)
    if not isinstance(value, list) or len(value) > 8 or not all(place in PLACES for place in value):
        raise BadReply(f"{name} is not a list of known places")
    return tuple(value)


def parse_background(head: dict[str, Any]) -> Background:
    """The state of a background command."""
    return Background(
        background_id=_name(head, "name"),
        session=_text(head, "session"),
        command=_text(head, "command"),
        is_running=_flag(head, "running"),
        is_leftover=_flag(head, "leftover"),
        has_failed=_flag(head, "failed"),
        was_killed=_flag(head, "killed"),
        exit_code=_maybe_number(head, "exit_code", 0, 255),
        signal=_maybe_number(head, "signal", 1, 128),
        pids=_pids(head, "pids"),
        first_byte=_number(head, "first"),
        total_bytes=_number(head, "total"),
        age_ms=_duration(head, "age_ms"),
    )


def parse_background_output(frame: Frame, max_bytes: int) -> BackgroundOutput:
    """A part of what a background command printed."""
    state = parse_background(frame.head)
    start = _number(frame.head, "start", 0, state.total_bytes)
    if len(frame.body) > min(max_bytes, state.total_bytes - start):
        raise BadReply("more output than asked for, or than there is")
    return BackgroundOutput(state=state, start=start, data=frame.body)


def parse_backgrounds(frame: Frame) -> tuple[Background, ...]:
    """The states of background commands."""
    states = frame.head.get("backgrounds")
    if not isinstance(states, list) or len(states) > MAX_BACKGROUNDS or not all(isinstance(s, dict) for s in states):
        raise BadReply("backgrounds is not a list of states")
    return tuple(parse_background(state) for state in states)


def _capture(part: dict[str, Any], data: bytes) -> Capture:
    size = _number(part, "head")
    return Capture(
        head=data[:size],
        tail=data[size:],
        total_bytes=_number(part, "bytes"),
        total_lines=_number(part, "lines"),
        dropped_bytes=_number(part, "dropped"),
    )


def parse_read(frame: Frame, max_bytes: int) -> ReadAnswer:
    """Lines of a file."""
    if len(frame.body) > max_bytes:
        raise BadReply("more text than asked for")
    head = frame.head
    return ReadAnswer(
        path=_text(head, "path"),
        version=parse_version(head),
        text=frame.body,
        first_line=_number(head, "first_line", 1),
        last_line=_number(head, "last_line"),
        total_lines=_number(head, "total_lines"),
        partial=_flag(head, "partial"),
        line_cut=_flag(head, "line_cut"),
        # An older guest says nothing of it.
        encoding=_encoding(head, "encoding") if "encoding" in head else "",
    )


def _encoding(head: dict[str, Any], name: str) -> str:
    value = _text(head, name, MAX_NAME)
    if value not in ENCODINGS:
        raise BadReply(f"{name} is none that is known")
    return value


def parse_stat(frame: Frame) -> StatAnswer:
    """What lies at a path."""
    head = frame.head
    kind = _text(head, "kind")
    if kind not in KINDS:
        raise BadReply(f"there is no such kind of file: {kind}")
    version = None if head.get("version") is None else parse_version(head)
    return StatAnswer(path=_text(head, "path"), kind=kind, size=_number(head, "size"), version=version)


def parse_edit(frame: Frame) -> EditAnswer:
    """What an edit did."""
    head = frame.head
    return EditAnswer(
        path=_text(head, "path"),
        version=parse_version(head),
        replacements=_number(head, "replacements", 1),
        diff=frame.body[:65_536].decode("utf-8", "replace"),
        diff_cut=_flag(head, "diff_cut"),
        other_names=_number({"other_names": 0, **head}, "other_names"),
    )


def parse_write(frame: Frame) -> WriteAnswer:
    """What a write did."""
    head = frame.head
    return WriteAnswer(
        path=_text(head, "path"),
        version=parse_version(head),
        created=_flag(head, "created"),
        bytes=_number(head, "bytes"),
        other_names=_number({"other_names": 0, **head}, "other_names"),
    )


def parse_info(frame: Frame) -> GuestInfo:
    """What the guest says of itself."""
    head = frame.head
    facts = _part(head, "facts")
    return GuestInfo(
        protocol=_number(head, "protocol"),
        python=_text(head, "python"),
        machine=_text(head, "machine"),
        shell=_text(head, "shell"),
        uid=_number(head, "uid"),
        gid=_number(head, "gid"),
        frozen=_flag(head, "frozen"),
        pids=_number(head, "pids"),
        facts={str(name): _text(facts, name) for name in list(facts)[:100]},
    )
