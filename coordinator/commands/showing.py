"""A kept session in words: reading → **showing** (timeline, answers) → `sandhog show`."""

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import TextIO

from coordinator.commands.timeline import Timeline
from coordinator.commands.wording import size
from coordinator.errors import ConfigError
from coordinator.session.call_events import AnswerShortened, CallFinished
from coordinator.session.event_fields import CutInfo
from coordinator.session.events import Event
from coordinator.session.reading import SessionReading
from coordinator.session.session_events import SessionStarted
from coordinator.session.transcript import CHILDREN_DIR
from coordinator.visible import visible, visible_line
from worker.contract.places import has_private_copy
from worker.contract.removals import Removal, removals_of

ANSWER_LINES = 8
"""As many lines of an answer are shown, unless one step is asked for."""
LINE_WIDTH = 160
SPILL = "/spill/"
"""Where a box sees its session's spill directory."""


class Showing:
    """Prints sessions.

    Args:
        out: Where to.
        session_dir: The session's directory, for what is left of it.
        only_step: Only what belongs to this step, with whole answers; None for all.
    """

    def __init__(self, out: TextIO, session_dir: Path, *, only_step: int | None = None) -> None:
        self._out = out
        self._session_dir = session_dir
        self._only_step = only_step
        self._at_s = 0.0
        # Time passes as it did in the session.
        self._timeline = Timeline(out, is_live=False, clock=lambda: self._at_s)

    def print(self, reading: SessionReading) -> None:
        """Print all of a session."""
        for fault in reading.faults:
            self._line(f"! {visible(fault)}")
        for entry in reading.entries:
            if self._only_step is not None and entry.fields.get("step") != self._only_step:
                continue
            with contextlib.suppress(ValueError):
                self._at_s = datetime.fromisoformat(entry.at).timestamp()
            if entry.event is None:
                self._line(f"  ({visible_line(str(entry.fields['type']), 60)}: an event of a later release)")
            else:
                self._event(entry.event)
        if self._only_step is None:
            for words in _what_is_left(reading, self._session_dir):
                self._line(words)

    def _event(self, event: Event) -> None:
        self._timeline(event)
        if not isinstance(event, CallFinished):
            return
        lines = visible(answer_text(event.answer)).rstrip("\n").split("\n")
        is_whole = self._only_step is not None
        most = len(lines) if is_whole else ANSWER_LINES
        for line in lines[:most]:
            self._line(f"      {line if is_whole else visible_line(line, LINE_WIDTH)}")
        if len(lines) > most:
            self._line(f"      … {len(lines) - most} more lines: --step {event.step}")
        if event.cut is not None:
            self._line(f"      {_whole_of(event.step, event.index, event.cut, self._session_dir)}")

    def _line(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def answer_text(answer: str) -> str:
    """Return what an answer says to the model: its text, and why there is none or not more."""
    try:
        fields = json.loads(answer)
    except ValueError:
        return answer
    if not isinstance(fields, dict):
        return answer
    error = fields.get("error")
    why = error.get("message") if isinstance(error, dict) else None
    return "\n".join(str(words) for words in (fields.get("text"), why) if words)


def raw_result(reading: SessionReading, session_dir: Path, step: int, index: int) -> str:
    """Return all of a call's result, as it was before it was cut.

    Raises:
        ConfigError: there is no such call, or the text is gone.
    """
    finished = cut = None
    for entry in reading.entries:
        match entry.event:
            case CallFinished(step=at, index=place) if (at, place) == (step, index):
                finished, cut = entry.event, entry.event.cut
            case AnswerShortened(step=at, index=place) if (at, place) == (step, index):
                # The recorded answer is whole, but for what the node had cut.
                cut = entry.event.cut if cut is not None else None
    if finished is None:
        raise ConfigError(f"Session {reading.session_id} has no answered call {step}.{index}.")
    if cut is None:
        return answer_text(finished.answer)
    if cut.path is None:
        raise ConfigError(f"The whole result of call {step}.{index} was not kept; --step {step} shows what was.")
    path = _spilled(cut.path, session_dir)
    try:
        return path.read_text(errors="replace")
    except OSError as exc:
        raise ConfigError(f"The result of call {step}.{index} was removed meanwhile: {path}: {exc.strerror}.") from exc


def _whole_of(step: int, index: int, cut: CutInfo, session_dir: Path) -> str:
    if cut.path is None:
        return "(the rest was not kept)"
    if not _spilled(cut.path, session_dir).is_file():
        return f"(all {size(cut.total_bytes)} were removed meanwhile)"
    return f"(all {size(cut.total_bytes)}: --raw {step}.{index})"


def _spilled(box_path: str, session_dir: Path) -> Path:
    """Return where a file lies that a box sees below `/spill`."""
    place = Path(box_path.removeprefix(SPILL))
    if place.is_absolute() or ".." in place.parts:
        raise ConfigError(f"{visible_line(box_path, LINE_WIDTH)} is no file of the session's spill directory.")
    # A sub-agent's output lies with that of the session above it.
    owner_dir = session_dir.parents[1] if session_dir.parent.name == CHILDREN_DIR else session_dir
    return owner_dir / "spill" / place


def _what_is_left(reading: SessionReading, session_dir: Path) -> list[str]:
    """Return what a person should know of the files of a session: what is kept, and what was removed."""
    started = next((entry.event for entry in reading.entries if isinstance(entry.event, SessionStarted)), None)
    words = []
    if started is not None and started.workspace_mode == "copy":
        is_there = has_private_copy(session_dir)
        words.append("The private copy is kept." if is_there else "The private copy was removed.")
    if started is not None and not (session_dir / "spill").is_dir() and session_dir.parent.name == "sessions":
        words.append("The spilled output was removed.")
    if session_dir.parent.name == "sessions":
        words += [removal_words(one) for one in removals_of(session_dir.parents[1], session_dir.name)]
    return words


def removal_words(removal: Removal) -> str:
    """Return what was removed of a session, when and why."""
    return visible_line(
        f"Removed at {removal.at}: {removal.kind.value}, {size(removal.size_bytes)} ({removal.why}).", LINE_WIDTH
    )
