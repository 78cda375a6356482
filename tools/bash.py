"""Bash: one command in the session's shell."""

import codecs
from signal import Signals
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue

from sandbox.requests import Capture, RunAnswer, RunRequest
from tools.base import ErrorCode, Parameters, RunContext, Spill, Stats, Tool, ToolResult
from tools.refusals import refusals_as_failures

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 600_000


class BashParameters(Parameters):
    """Arguments of Bash."""

    command: str = Field(min_length=1)
    """Shell text, run as typed, of any number of lines. Its standard input is empty."""
    timeout_ms: int = Field(default=DEFAULT_TIMEOUT_MS, ge=1, le=MAX_TIMEOUT_MS)
    """After so many milliseconds the command is ended with all its processes; output so far is kept."""


class Bash(Tool[BashParameters]):
    """Runs a command."""

    name = "Bash"
    description = (
        "Run a shell command in the sandbox. The working directory stays between calls; variables do not. There is no "
        "terminal, no input and by default no network. Answers stdout, stderr and exit code. Processes started with & "
        "live on. Prefer Read, Grep, Glob and Edit for files."
    )
    parameters = BashParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "runs_commands"

    def timeout_s(self, arguments: BashParameters) -> float:
        """Return the command's own limit."""
        return arguments.timeout_ms / 1000

    def run(self, arguments: BashParameters, context: RunContext) -> ToolResult:
        """Return what the command printed and how it ended; `partial` unless it exited with 0."""
        spilling = _Spilling(context.spill)
        request = RunRequest(context.mark, command=arguments.command, timeout_ms=arguments.timeout_ms)
        with refusals_as_failures():
            answer = context.box.run(request, on_output=spilling.write if context.spill else None)
        return _result(answer, spilling, arguments.timeout_ms)


class _Spilling:
    """Hands output to the spill while it streams; a full volume ends the spill, not the command."""

    def __init__(self, spill: Spill | None) -> None:
        self._spill = spill
        self._failed = False

    def write(self, chunk: bytes) -> None:
        if self._spill is None or self._failed:
            return
        try:
            self._spill.write(chunk)
        except OSError:
            self._failed = True

    @property
    def path(self) -> str | None:
        """Where the output lies, None if nothing was spilled."""
        return self._spill.box_path if self._spill is not None and self._spill.written_bytes else None

    @property
    def is_whole(self) -> bool:
        return self._spill is not None and not self._failed and not self._spill.bound_hit


class _Stream(NamedTuple):
    text: str
    is_binary: bool


def _result(answer: RunAnswer, spilling: _Spilling, timeout_ms: int) -> ToolResult:
    where = _where(answer, spilling)
    stdout, stderr = _decoded(answer.stdout, where), _decoded(answer.stderr, where)
    text = _text(stdout.text, stderr.text, _notes(answer))
    data: dict[str, JsonValue] = {
        "exit_code": answer.exit_code,
        "signal": answer.signal,
        "timed_out": answer.timed_out,
        "duration_ms": round(answer.duration_ms, 1),
        "cwd": answer.cwd,
        "stdout_bytes": answer.stdout.total_bytes,
        "stderr_bytes": answer.stderr.total_bytes,
    }
    if stdout.is_binary or stderr.is_binary:
        data["binary"] = True
    if answer.left_running:
        data["left_running"] = list(answer.left_running)
    if spilling.path is not None:
        data["output_path"] = spilling.path
    code, message = _error(answer, timeout_ms)
    return ToolResult(
        status="error" if code else "success" if answer.exit_code == 0 else "partial",
        text=text,
        data=data,
        error_code=code,
        error_message=message,
        stats=Stats(bytes=answer.stdout.total_bytes + answer.stderr.total_bytes),
        context={"cwd": answer.cwd},
    )


def _error(answer: RunAnswer, timeout_ms: int) -> tuple[ErrorCode, str] | tuple[None, None]:
    """Return code and message if the command was ended before its end, else nothing of both."""
    so_far = "with all its processes; what it printed so far is in text"
    if answer.cancelled:
        return ErrorCode.CANCELLED, f"The command was cancelled and ended {so_far}."
    if answer.timed_out:
        longer = f"Give it a longer timeout_ms (at most {MAX_TIMEOUT_MS}), or do less at once."
        return ErrorCode.TIMEOUT, f"The command did not end within {timeout_ms} ms and was ended {so_far}. {longer}"
    return None, None


def _text(stdout: str, stderr: str, notes: list[str]) -> str:
    parts = [stdout.removesuffix("\n")] if stdout else []
    if stderr:
        parts += ["[stderr]", stderr.removesuffix("\n")]
    if not parts:
        parts.append("(no output)")
    return "\n".join(parts + notes)


def _notes(answer: RunAnswer) -> list[str]:
    """Return one line for everything about the end that the output does not tell."""
    notes = []
    if answer.signal is not None and not answer.timed_out and not answer.cancelled:
        notes.append(f"[killed by signal {answer.signal} ({_signal_name(answer.signal)})]")
    elif answer.exit_code:
        notes.append(f"[exit code {answer.exit_code}]")
    elif answer.exit_code is None and answer.signal is None:
        notes.append("[how the command ended was not seen]")
    if answer.oom_kills:
        notes.append(f"[the sandbox ran out of memory: {answer.oom_kills} of its processes were killed]")
    if answer.killed_leftovers:
        notes.append("[no process was left in the sandbox: what earlier commands had left running was killed]")
    if answer.left_running:
        pids = " ".join(str(pid) for pid in answer.left_running)
        notes.append(f"[still running in the background: {pids}; end them with kill]")
    return notes


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return "unknown"


def _where(answer: RunAnswer, spilling: _Spilling) -> str:
    if spilling.path is None:
        return ""
    how = "all output" if spilling.is_whole and answer.spill_complete else "output, with parts missing,"
    return f"; {how} is in {spilling.path}"


def _decoded(capture: Capture, where: str) -> _Stream:
    """Return a stream's text, its gap named; characters torn at the gap are left out, not replaced."""
    is_cut = capture.dropped_bytes > 0
    head, head_is_binary = _decode(capture.head, ends_whole=not is_cut)
    if not is_cut:
        return _Stream(head, head_is_binary)
    torn = 0
    while torn < min(3, len(capture.tail)) and 0x80 <= capture.tail[torn] < 0xC0:
        torn += 1
    tail, tail_is_binary = _decode(capture.tail[torn:], ends_whole=True)
    whole = f"{capture.total_bytes} bytes, {capture.total_lines} lines"
    gap = f"[… {capture.dropped_bytes} bytes of {whole} left out here{where} …]"
    return _Stream(f"{head}\n{gap}\n{tail}", head_is_binary or tail_is_binary)


def _decode(raw: bytes, *, ends_whole: bool) -> _Stream:
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        text, is_binary = decoder.decode(raw, final=ends_whole), False
    except UnicodeDecodeError:
        text, is_binary = raw.decode(errors="replace"), True
    return _Stream(text.replace("\0", "\ufffd"), is_binary or "\0" in text)
