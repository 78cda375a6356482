"""A session's events as they are kept, shown: journal → **watching** → timeline; for `logs` and `attach`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from coordinator.commands.timeline import Timeline
from coordinator.service.journal import Journal, Line
from coordinator.session.events import Event, parse_event
from coordinator.session.session_events import SessionEnded, SessionResumed
from coordinator.visible import visible


class Watching:
    """Reads what is new of a session and shows it.

    Args:
        session_dir: The session's directory.
        out: Where it is shown.
        as_json: Events as they are kept, one a line, instead of a timeline.
        is_live: Whether the timeline may redraw.
    """

    def __init__(self, session_dir: Path, out: TextIO, *, as_json: bool = False, is_live: bool = False) -> None:
        self._journal = Journal(session_dir)
        self._out = out
        self._as_json = as_json
        self._has_ended = False
        self.timeline = Timeline(out, is_live=is_live)

    def show_new(self) -> bool:
        """Show what came since the last time; return whether the session has ended.

        Raises:
            OSError: the transcript cannot be read.
        """
        for _ in self.new_events():
            pass
        return self._has_ended

    def new_events(self) -> Iterator[Event]:
        """Show what came since the last time, and yield it."""
        while lines := self._journal.read():
            for line in lines:
                event = _event(line)
                self._show(line, event)
                if event is not None:
                    self._has_ended = isinstance(event, SessionEnded) or (
                        self._has_ended and not isinstance(event, SessionResumed)
                    )
                    yield event

    def _show(self, line: Line, event: Event | None) -> None:
        if self._as_json:
            text = json.dumps(line.fields, ensure_ascii=False)
            self._out.write((visible(text) if self._out.isatty() else text) + "\n")
        elif event is not None:
            self.timeline(event)


def _event(line: Line) -> Event | None:
    """Return the event of a kept line; None for one of a later release."""
    try:
        return parse_event({name: value for name, value in line.fields.items() if name not in ("v", "seq", "at")})
    except ValidationError:
        return None
