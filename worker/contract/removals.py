"""What was removed for its age or size, kept on the volume so that it can still be told: node → **removals** → show."""

import os
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

NAME = "removed.jsonl"
MOST_BYTES = 4 * 1024 * 1024
"""A longer file loses its older half."""


class Kind(StrEnum):
    """What is kept of sessions, each for a time of its own."""

    COPY = "private copy"
    SPILL = "spilled output"
    SESSION = "session"
    """All that is left: transcript, patch, request."""
    RUN = "leftovers of a command that was killed"


class Removal(BaseModel):
    """One thing that was removed, or would be."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    session: str
    """Its id; of leftovers the name of the run."""
    kind: Kind
    size_bytes: int
    why: str
    at: str = ""
    """When, as ISO 8601; empty while it is only planned."""


REMOVALS = TypeAdapter(list[Removal])


def note(state_dir: Path, removal: Removal) -> None:
    """Write a removal down.

    Raises:
        OSError: the volume takes nothing.
    """
    path = state_dir / NAME
    with path.open("ab") as file:
        file.write(removal.model_dump_json().encode() + b"\n")
        is_long = file.tell() > MOST_BYTES
    if is_long:
        data = path.read_bytes()
        draft = path.with_name(f".{NAME}.{os.getpid()}")
        draft.write_bytes(data[data.index(b"\n", len(data) // 2) + 1 :])
        draft.replace(path)


def removals_of(state_dir: Path, session: str) -> list[Removal]:
    """Return what was removed of a session, given all of its id or the beginning; none where nothing is known."""
    try:
        lines = (state_dir / NAME).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            removal = Removal.model_validate_json(line)
        except ValidationError:
            # Half a line, of a node that was killed.
            continue
        if session and removal.session.startswith(session):
            found.append(removal)
    return found
