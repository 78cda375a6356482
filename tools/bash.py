"""Bash: one command in the session's shell, waited for or in the background."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from sandbox.requests import RunAnswer, RunRequest
from tools.background import news, state_notes
from tools.base import ErrorCode, Parameters, RunContext, Stats, Tool, ToolResult
from tools.limits import limit_notes
from tools.printed import printed, signal_name
from tools.refusals import refusals_as_failures
from tools.spilling import Spill, SpillFlaw, whereabouts

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 600_000
KEEP_BYTES = 65_536
"""Of each stream's head, and again of its tail; more where more of a result is shown."""


class BashParameters(Parameters):
    """Arguments of Bash."""

    command: str = Field(min_length=1)
    """Shell text, run as typed, of any number of lines. Its standard input is empty."""
    timeout_ms: int = Field(default=DEFAULT_TIMEOUT_MS, ge=1, le=MAX_TIMEOUT_MS)
    """After so many milliseconds the command is ended with all its processes; output so far is kept."""
    background: bool = False
    """Answer at once and let the command run without a time limit; read it with BashOutput, end it with KillBash."""


class Bash(Tool[BashParameters]):
    """Runs a command."""

    name = "Bash"
    description = (
        "Run a shell command in the sandbox. The working directory stays between calls; variables do not. There is no "
        "terminal, no input and by default no network. Answers stdout, stderr and exit code. Servers and watchers go "
        "into the background: their id is in the answer, also of processes started with &. Prefer Read, Grep, Glob and "
        "Edit for files."
    )
    parameters = BashParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "runs_commands"
    is_bounded = True

    def timeout_s(self, arguments: BashParameters) -> float:
        """Return the command's own limit."""
        return arguments.timeout_ms / 1000

    def run(self, arguments: BashParameters, context: RunContext) -> ToolResult:
        """Return what the command printed and how it ended; `partial` unless it exited with 0."""
        if arguments.background:
            return _in_background(arguments, context)
        spill = context.spill
        with refusals_as_failures():
            if spill is None:
                answer = context.box.run(_request(arguments, context, 0))
            else:
                room = spill.written_bytes + spill.room_bytes
                # One byte more, so that the spill itself sees that there was more than it takes.
                answer = context.box.run(_request(arguments, context, room + 1), on_output=spill.write)
                _note_gaps(spill, answer, room)
        return _result(answer, spill, arguments.timeout_ms, context.box.info.facts)


def _request(arguments: BashParameters, context: RunContext, stream_bytes: int) -> RunRequest:
    return RunRequest(
        context.mark,
        command=arguments.command,
        timeout_ms=arguments.timeout_ms,
        keep_bytes=max(KEEP_BYTES, context.result_bytes),
        background=arguments.background,
        stream_bytes=stream_bytes,
    )


def _in_background(arguments: BashParameters, context: RunContext) -> ToolResult:
    with refusals_as_failures():
        answer = context.box.run(_request(arguments, context, 0))
    assert answer.background_id is not None
    found = news(context, answer.background_id)
    notes = [f"[started in the background as {answer.background_id}]", *state_notes(found)]
    if found.state.is_running:
        notes.append("[BashOutput shows what else it prints, KillBash ends it]")
    text = found.text.removesuffix("\n")
    return ToolResult(
        status="success" if found.state.is_running or found.state.exit_code == 0 else "partial",
        text="\n".join([*([text] if text else []), *notes]),
        data={"background_id": answer.background_id, **found.data()},
        stats=Stats(bytes=found.new_bytes),
        context={"cwd": answer.cwd},
    )


def _note_gaps(spill: Spill, answer: RunAnswer, room: int) -> None:
    """Note what the spill did not get although there was room for it."""
    total = answer.stdout.total_bytes + answer.stderr.total_bytes
    if answer.streamed and (not answer.spill_complete or spill.written_bytes < min(total, room)):
        spill.spoil(SpillFlaw.LINK)


def _result(answer: RunAnswer, spill: Spill | None, timeout_ms: int, facts: Mapping[str, str]) -> ToolResult:
    where = whereabouts(spill) if spill is not None and answer.streamed else ""
    stdout, stderr = printed(answer.stdout, where), printed(answer.stderr, where)
    text = _text(stdout.text, stderr.text, _notes(answer, facts))
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
    if answer.background_id is not None:
        data["background_id"] = answer.background_id
        data["left_running"] = list(answer.left_running)
    if spill is not None and answer.streamed and spill.written_bytes:
        data["output_path"] = spill.box_path
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


def _notes(answer: RunAnswer, facts: Mapping[str, str]) -> list[str]:
    """Return one line for everything about the end that the output does not tell."""
    notes = []
    if answer.signal is not None and not answer.timed_out and not answer.cancelled:
        notes.append(f"[killed by signal {answer.signal} ({signal_name(answer.signal)})]")
    elif answer.exit_code:
        notes.append(f"[exit code {answer.exit_code}]")
    elif answer.exit_code is None and answer.signal is None:
        notes.append("[how the command ended was not seen]")
    notes += limit_notes(answer, facts)
    if answer.killed_leftovers:
        notes.append("[no process was left in the sandbox: what earlier commands had left running was killed]")
    if answer.left_running:
        pids = " ".join(str(pid) for pid in answer.left_running)
        notes.append(
            f"[still running in the background as {answer.background_id}: {pids}; "
            "BashOutput shows what they print, KillBash ends them]"
        )
    return notes
