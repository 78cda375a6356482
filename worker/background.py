"""Background output at the end of a session: kept beside its spill files before its box ends."""

import logging
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from sandbox.requests import Background
from worker.spill import Spills

log = logging.getLogger(__name__)

PIECE_BYTES = 1024 * 1024


def keep_background_output(box: Box, session_dir: Path, spills: Spills) -> None:
    """Write what the box still has of its background commands' output, each into a file of its own; never raises."""
    if not box.is_alive():
        return
    try:
        for state in box.backgrounds(None):
            if state.total_bytes > state.first_byte:
                _keep(box, state, session_dir, spills)
    except SandboxError as exc:
        log.warning("background output was not kept", extra={"box_id": box.box_id, "error": str(exc)})


def _keep(box: Box, state: Background, session_dir: Path, spills: Spills) -> None:
    spill = spills.file(session_dir, f"background-{box.box_id}-{state.background_id}")
    offset = state.first_byte
    while offset < state.total_bytes and spill.room_bytes:
        piece = box.background_output(state.session, state.background_id, offset, PIECE_BYTES)
        if not piece.data:
            break
        spill.write(piece.data)
        offset = piece.start + len(piece.data)
    if spill.flaw is not None:
        log.warning("background output was kept in part", extra={"box_id": box.box_id, "flaw": spill.flaw.value})
