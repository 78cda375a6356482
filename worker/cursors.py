"""Cursors: how far a session has read what its background commands print.

A file in the session's directory, so that a node that is started again, or another one, goes on where the last one was.
"""

import json
import logging
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from worker.contract import keys

log = logging.getLogger(__name__)

KEPT = 200
"""Cursors of a session that are kept, the last ones used."""


class _Cursor(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    call: str
    begin: int
    end: int


_CURSORS = TypeAdapter(dict[str, _Cursor])


class FileCursors:
    """The cursors of one conversation for one call. Its calls must come one after another."""

    def __init__(self, session_dir: Path, call_key: str) -> None:
        # Sub-agents that run at the same time must not write one file.
        child = call_key.partition(":")[0].partition(keys.CHILD_MARK)[2]
        self._path = session_dir / (f"background-{child}.json" if child else "background.json")
        self._call = call_key

    def begin(self, name: str) -> int:
        """Return where the call before ended; for a call that is asked again, where it began itself."""
        cursor = self._load().get(name)
        if cursor is None:
            return 0
        return cursor.begin if cursor.call == self._call else cursor.end

    def end(self, name: str, offset: int) -> None:
        """Keep how far this call has come; where that cannot be kept, the next call shows the same again."""
        cursors = self._load()
        begin = self.begin(name)
        cursors.pop(name, None)
        cursors[name] = _Cursor(call=self._call, begin=begin, end=offset)
        kept = dict(list(cursors.items())[-KEPT:])
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_bytes(_CURSORS.dump_json(kept))
            draft.replace(self._path)
        except OSError as exc:
            log.warning("a cursor was not kept", extra={"call_id": self._call, "error": str(exc)})

    def _load(self) -> dict[str, _Cursor]:
        try:
            return _CURSORS.validate_python(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, ValidationError):
            return {}
