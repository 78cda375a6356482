"""Boxes from the Docker engine (skeleton: the methods and types stand, bodies follow)."""

from dataclasses import dataclass
from pathlib import Path

from sandbox.box import Box
from sandbox.record import BoxRecord
from sandbox.spec import BoxSpec


@dataclass(frozen=True)
class EngineSettings:
    """Where the engine is and what it may use."""

    node: str
    """Name of the node that owns the boxes."""
    guest_folder: Path
    """The installed guest folder, as the engine's host sees it (see `guest_folder.install`)."""
    records_dir: Path
    base_url: str | None = None
    """The engine's address; None is DOCKER_HOST or the local socket."""
    timeout_s: float = 60.0
    heartbeat_s: float = 2.0


class DockerEngine:
    """Starts, adopts and removes boxes of one node."""

    def __init__(self, settings: EngineSettings) -> None:
        raise NotImplementedError

    def start(self, spec: BoxSpec, session: str, generation: int) -> Box:
        """A new box, proven to hold its controls."""
        raise NotImplementedError

    def renew(self, box: Box, session: str, generation: int, lifetime_s: float) -> None:
        """Write into the box's record who has it, and until when."""
        raise NotImplementedError

    def adopt(self) -> list[tuple[BoxRecord, Box]]:
        """This node's running boxes that have a record, linked again; its other containers are removed."""
        raise NotImplementedError

    def sweep(self) -> int:
        """Remove what no one owns; how many containers and records were removed."""
        raise NotImplementedError

    def image_exists(self, ref: str) -> bool:
        """True when the image is on this engine."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop heartbeats and close links. Boxes live on until their dead-man timer."""
        raise NotImplementedError
