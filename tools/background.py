"""Background commands, as their tools see them: what is new of one's output, and the words about its state."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from sandbox.requests import Background, BackgroundOutput, Capture
from tools.base import ErrorCode, RunContext, ToolFailure
from tools.cutting import cut_line
from tools.printed import printed, signal_name, torn_bytes, unfinished_bytes
from tools.refusals import refusals_as_failures
from tools.spilling import whereabouts

SHOWN_BYTES = 40_000
"""New output of one answer; of more its head and its tail are shown."""
HEAD_BYTES = 12_000
TAIL_BYTES = 24_000
PIECE_BYTES = 1024 * 1024
SHOWN_COMMAND = 60
SHOWN_KNOWN = 20
"""Background commands that an unknown name is answered with, the last ones."""


@dataclass(frozen=True)
class News:
    """What a background command has printed since the session last looked, and what it is now."""

    state: Background
    text: str
    """"" when there is nothing new."""
    new_bytes: int
    lost_bytes: int
    """New output that was overwritten before it was read."""
    is_binary: bool
    output_path: str
    """File with more than what is shown; "" when there is none."""

    def data(self) -> dict[str, JsonValue]:
        """Return the facts for programs."""
        state = self.state
        data: dict[str, JsonValue] = {
            "id": state.background_id,
            "running": state.is_running,
            "exit_code": state.exit_code,
            "signal": state.signal,
            "new_bytes": self.new_bytes,
            "total_bytes": state.total_bytes,
        }
        if state.pids:
            data["pids"] = list(state.pids)
        if self.lost_bytes:
            data["lost_bytes"] = self.lost_bytes
        if self.is_binary:
            data["binary"] = True
        if self.output_path:
            data["output_path"] = self.output_path
        return data


class _Kept:
    """Head and tail of what is read piece by piece; all of it when it is little."""

    def __init__(self, expected_bytes: int) -> None:
        self._head_bytes = HEAD_BYTES if expected_bytes > SHOWN_BYTES else SHOWN_BYTES
        self._head = b""
        self._tail = b""
        self._newlines = 0
        self.total_bytes = 0

    def add(self, piece: bytes) -> None:
        self.total_bytes += len(piece)
        self._newlines += piece.count(b"\n")
        room = self._head_bytes - len(self._head)
        self._head += piece[:room]
        self._tail = (self._tail + piece[room:])[-TAIL_BYTES:]

    def give_back(self) -> int:
        """Take the beginning of a character off the end; how many bytes that were."""
        torn = unfinished_bytes(self._tail or self._head)
        if torn and self._tail:
            self._tail = self._tail[:-torn]
        elif torn:
            self._head = self._head[:-torn]
        self.total_bytes -= torn
        return torn

    def capture(self, *, is_torn: bool) -> Capture:
        """Return what was kept; `is_torn`: it may begin within a character."""
        head = self._head[torn_bytes(self._head) :] if is_torn else self._head
        ends_open = not (self._tail or self._head).endswith(b"\n")
        lines = self._newlines + (1 if ends_open and self.total_bytes else 0)
        dropped = self.total_bytes - len(self._head) - len(self._tail)
        return Capture(head, self._tail, self.total_bytes, lines, dropped)


def news(context: RunContext, background_id: str) -> News:
    """Return what is new of a background command, and note that it was shown.

    Raises:
        ToolFailure: the session has none of that name; says which it has.
        BoxLost: the box ended.
    """
    name = f"{context.mark.session}/{context.box.box_id}/{background_id}"
    asked = context.cursors.begin(name) if context.cursors is not None else 0
    first = _piece(context, background_id, asked, PIECE_BYTES)
    state, start, end = first.state, first.start, first.state.total_bytes
    # All that is left of an ended command's output goes into one file, when it is too much for one answer.
    is_last = not state.is_running and end > start and end - state.first_byte > SHOWN_BYTES
    spill = context.spill if is_last or end - start > SHOWN_BYTES else None
    if spill is not None:
        spill.start_over()
    kept, lost = _Kept(end - start), start - asked
    at = state.first_byte if is_last else start
    while at < end:
        piece = first if at == start else _piece(context, background_id, at, min(PIECE_BYTES, end - at))
        lost += max(0, min(piece.start, end) - max(at, start))
        if piece.start >= end:
            break
        if spill is not None:
            spill.write(piece.data)
        kept.add(piece.data[max(0, start - piece.start) :])
        at = piece.start + len(piece.data)
        if at < end and len(piece.data) < min(PIECE_BYTES, end - piece.start):
            # The box's disk does not give the rest.
            lost += end - at
            break
    if state.is_running:
        end -= kept.give_back()
    if context.cursors is not None:
        context.cursors.end(name, end)
    shown = printed(kept.capture(is_torn=lost > 0), whereabouts(spill) if spill is not None else "")
    path = spill.box_path if spill is not None and spill.written_bytes else ""
    return News(state, shown.text, end - start, lost, shown.is_binary, path)


def state_notes(found: News) -> list[str]:
    """Return one line for everything that the new output does not tell."""
    state, notes = found.state, []
    if found.lost_bytes:
        notes.append(f"[{found.lost_bytes} bytes before this are lost: of much output only the last part is kept]")
    if state.is_running:
        notes.append(f"[{state.background_id} is still running: {' '.join(map(str, state.pids))}]")
        return notes
    how = "has ended"
    if state.has_failed:
        how = "could not be started"
    elif not state.is_leftover and state.signal is not None:
        how = f"was killed by signal {state.signal} ({signal_name(state.signal)})"
    elif not state.is_leftover and state.exit_code is not None:
        how = f"has ended with exit code {state.exit_code}"
    return [*notes, f"[{state.background_id} {how}]"]


def _piece(context: RunContext, background_id: str, offset: int, size: int) -> BackgroundOutput:
    with known_only(context, background_id), refusals_as_failures():
        return context.box.background_output(context.mark.session, background_id, offset, size)


@contextmanager
def known_only(context: RunContext, background_id: str) -> Iterator[None]:
    """Turn the refusal of an unknown name into a failure that says which are known.

    Raises:
        ToolFailure: the session has no such background command.
    """
    try:
        yield
    except ToolFailure as failure:
        if failure.code is not ErrorCode.NOT_FOUND:
            raise
        known = context.box.backgrounds(context.mark.session)
        running = [_listed(state) for state in known if state.is_running][-SHOWN_KNOWN:]
        ended = [_listed(state) for state in known if not state.is_running][-SHOWN_KNOWN:]
        words = f"Running: {', '.join(running) or 'none'}."
        if ended:
            words += f" Ended: {', '.join(ended)}."
        raise ToolFailure(
            ErrorCode.NOT_FOUND, f"There is no background command {cut_line(background_id, 40)!r}. {words}"
        ) from failure


def _listed(state: Background) -> str:
    return f"{state.background_id} (`{' '.join(state.command.split())[:SHOWN_COMMAND]}`)"
