"""Background output at the end of a session: kept beside its spill files before its box ends."""

import logging
import time
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from sandbox.requests import Background
from worker.spill import SpillFile, Spills

log = logging.getLogger(__name__)

PIECE_BYTES = 1024 * 1024
KEEP_S = 20.0
"""For all of a box: a guest that answers slowly does not hold up the end of its session."""


def keep_background_output(box: Box, session_dir: Path, spills: Spills) -> int:
    """Write what the box still has of its background commands' output, each into a file of its own; never raises.

    Returns of how many commands something was kept.
    """
    if not box.is_alive():
        return 0
    kept = 0
    deadline = time.monotonic() + KEEP_S
    try:
        for state in box.backgrounds(None):
            if state.total_bytes > state.first_byte and time.monotonic() < deadline:
                _keep(box, state, spills.file(session_dir, _name(box, state)), deadline)
                kept += 1
    except SandboxError as exc:
        log.warning("background output was not kept", extra={"box_id": box.box_id, "error": str(exc)})
    return kept


def _name(box: Box, state: Background) -> str:
    name = "".join(letter for letter in state.background_id if letter.isascii() and letter.isalnum())
    return f"background-{box.box_id}-{name}"


def _keep(box: Box, state: Background, spill: SpillFile, deadline: float) -> None:
    offset = state.first_byte
    while offset < state.total_bytes and spill.room_bytes and time.monotonic() < deadline:
        piece = box.background_output(state.session, state.background_id, offset, PIECE_BYTES)
        spill.write(piece.data)
        offset = piece.start + len(piece.data)
        if len(piece.data) < min(PIECE_BYTES, state.total_bytes - piece.start):
            break
    if offset < state.total_bytes:
        log.warning("background output was kept in part", extra={"box_id": box.box_id, "flaw": spill.problem})
