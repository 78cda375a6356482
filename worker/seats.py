"""What a node knows of one session that has, or had, a box here, and what its model is told of a box that went."""

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from worker.background import keep_background_output
from worker.spill import Spills
from worker.workspace import Workspace

log = logging.getLogger(__name__)

KEPT_AND_LOST = (
    "Kept: all files below /workspace, and the spilled output in /spill. Lost: running processes and background "
    "commands, installed packages and every other change outside of /workspace, /tmp, and the working directory, which "
    "is /workspace again."
)
"""The short form of the table in docs/boxes.md."""
IDLE_NOTE = (
    "Your sandbox was ended after {minutes} minutes without a call, so that others could have its place; this is a "
    "fresh one. "
)
OUTPUT_NOTE = "What background commands had printed until then is in /spill, in files named background-*."


@dataclass
class Seat:
    """What this node knows of one session; guarded by its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    box: Box | None = None
    workspace: Workspace | None = None
    session_dir: Path | None = None
    note: str = ""
    """Told with its next answer to each conversation that had the box which was lost last."""
    losses: int = 0
    """How many boxes were lost; this and `heard` are guarded by the lock of its Boxes."""
    heard: dict[str, int] = field(default_factory=dict)
    """Of how many losses each conversation was told: the session's own, and those of its sub-agents."""
    generation: int = 0
    """Of the session, as the box's record has it."""
    renewed_at: float = 0.0
    used_at: float = 0.0
    idle_s: int | None = None
    """After how long without a call its box is ended, if its profile says so."""
    is_placeless: bool = False
    """Its box was ended for idleness and its place given back, or it found none when it wanted a box."""
    is_starting: bool = False
    """A box is being started, for which it has a place."""

    @property
    def has_room(self) -> bool:
        """A box of it takes up a place here, now or in a moment. Needs no lock."""
        return self.is_starting or self.box is not None

    def sit(self, box: Box, generation: int) -> None:
        """Give the session a box. The seat's lock is held."""
        self.box, self.generation = box, generation
        self.renewed_at = self.used_at = time.monotonic()

    def keep_output(self, spills: Spills) -> int:
        """Keep what background commands printed, and return of how many. The seat's lock is held."""
        if self.box is None or self.session_dir is None:
            return 0
        return keep_background_output(self.box, self.session_dir, spills)


def end(seat: Seat) -> None:
    """End the seat's box, if it has one. The seat's lock is held."""
    box, seat.box = seat.box, None
    if box is None:
        return
    try:
        box.close()
    except (SandboxError, OSError) as exc:
        # Its dead-man timer ends it; what is left to do for the session must be done all the same.
        log.error("a box could not be ended", extra={"box_id": box.box_id, "error": str(exc)})
