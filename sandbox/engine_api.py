"""What the rooms above need of whatever runs their boxes; `tests/sandbox/test_conformance.py` shows both that do."""

from typing import Protocol

from sandbox.box import Box
from sandbox.record import BoxRecord
from sandbox.spec import BoxSpec


class Engine(Protocol):
    """Starts, adopts and removes boxes of one node. Thread-safe."""

    def start(self, spec: BoxSpec, session: str, generation: int, pool_key: str = "") -> Box:
        """A new box. A failed start leaves nothing. Raises SandboxError."""

    def renew(self, box: Box, session: str, generation: int, lifetime_s: float, **changes: str) -> None:
        """Write into the box's record who has it, until when, and what else changed. Raises SandboxError."""

    def adopt(self) -> list[tuple[BoxRecord, Box]]:
        """This node's boxes that an earlier life left running. Raises EngineUnavailable."""

    def sweep(self) -> int:
        """Remove what nobody needs any more; how much it was. Raises EngineUnavailable."""

    def records(self) -> list[BoxRecord]:
        """What is on record of this node's boxes."""

    def pool_key(self, spec: BoxSpec) -> str | None:
        """What two boxes have alike that may stand for each other; None when none may. Raises EngineUnavailable."""

    def image_exists(self, ref: str) -> bool:
        """True when a box of the image could be started now. Raises EngineUnavailable."""

    def freeze_all(self) -> None:
        """Let the commands of all boxes stand still until `release_all`; comes back before they do."""

    def release_all(self) -> None:
        """Let the boxes go on whose session is still theirs; the others end."""

    def close(self) -> None:
        """Close links and stop heartbeats; boxes live on until they are adopted or their dead-man timer ends them."""
