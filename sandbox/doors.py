"""Which of an engine's boxes have a door, and what was learned of where that works: engine → **doors** → door."""

import logging
import os

from sandbox.container import DockerContainer
from sandbox.door import Door
from sandbox.record import BoxRecord, RecordStore
from sandbox.spec import BoxSpec

log = logging.getLogger(__name__)


class Doors:
    """The doors of one engine's boxes. Thread-safe."""

    def __init__(self, records: RecordStore, is_possible: bool) -> None:
        """`is_possible`: whether the engine may have this machine's files at all."""
        self._records = records
        # The box's root has no rights over others' files: it finds only a door that belongs to root.
        self._is_possible = is_possible and os.geteuid() == 0
        self._shut: set[str | None] = set()
        """Runtimes whose guests cannot come."""

    def may_have(self, spec: BoxSpec) -> bool:
        """Whether a box of this kind is to have a door. gVisor lets nobody out to a socket of the host."""
        return self._is_possible and not spec.is_gvisor and spec.runtime not in self._shut

    def open(self, record: BoxRecord) -> Door | None:
        """The box's door, opened here from now on; None where its record says that it has none, or it cannot be.

        Without it a relay is executed, so whatever prevents it is no error.
        """
        if not record.has_door:
            return None
        try:
            return Door(self._records.door_folder(record.box_id))
        except OSError as error:
            log.warning("a box's door cannot be opened", extra={"box_id": record.box_id, "error": str(error)})
            return None

    def learn(self, runtime: str | None, door: Door | None, container: DockerContainer) -> None:
        """Give no more doors to boxes of a runtime whose guest did not come to one, not even late.

        To be asked once a command has run: a guest tries to come before it has anything run.
        """
        if door is not None and container.is_executed and not door.was_knocked_at():
            log.warning("guests cannot come to our socket: relays are executed", extra={"runtime": runtime or ""})
            self._shut.add(runtime)
