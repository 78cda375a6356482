"""Removes containers and records that no box of ours stands for any more, whatever state they are in.

Decides by the node's own records and their expiry, never by what Redis says or does not say.
"""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from sandbox.box import Box
from sandbox.container import remove_container, translated
from sandbox.creation import BOX_LABEL, INSTALLATION_LABEL, LABEL, NAME_PREFIX, NODE_LABEL
from sandbox.record import BoxRecord, RecordStore

log = logging.getLogger(__name__)

ABANDONED_S = 600.0
"""A container that did not start, or has ended, is nobody's box after so long: starts give up far earlier."""


@dataclass(frozen=True)
class Held:
    """What this process holds, live views: boxes by id, and ids of boxes that are being started."""

    boxes: Collection[str]
    starting: Collection[str]

    def __contains__(self, box_id: str) -> bool:
        # In this order: a start is taken out of `starting` only after its box is in `boxes`.
        return box_id in self.starting or box_id in self.boxes


class Reaper:
    """Sees all containers of one node of one installation. Thread-safe."""

    def __init__(
        self,
        client: docker.APIClient,
        records: RecordStore,
        node: str,
        installation: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._records = records
        self._labels = [f"{NODE_LABEL}={node}", f"{INSTALLATION_LABEL}={installation}"]
        self._clock = clock
        self._left: dict[str, str] = {}
        """Workspaces of boxes that are nobody's, and whose containers may run."""

    def containers(self) -> dict[str, str]:
        """State of each container of this node by box id.

        Raises:
            EngineUnavailable.
        """
        with translated("list of boxes"):
            found = self._client.containers(all=True, filters={"label": self._labels})
        return {container["Labels"][BOX_LABEL]: container["State"] for container in found}

    def is_expired(self, record: BoxRecord | None) -> bool:
        """Whether a box has no record, or one whose time has run out."""
        return record is None or record.is_past(self._clock())

    def sweep(self, boxes: dict[str, Box], starting: set[str]) -> int:
        """Remove containers that are no box of ours, ended or expired, and records without a container; how many.

        Raises:
            EngineUnavailable.
        """
        held = Held(boxes, starting)
        removed = 0
        living = self.containers()
        for box_id, state in living.items():
            if box_id in starting:
                continue
            box = boxes.get(box_id)
            # Of one that runs nobody is asked once more: who has no answer would take it for ended.
            is_alive = box is not None and (state == "running" or box.is_alive())
            if is_alive and not self.is_expired(self._records.load(box_id)):
                continue
            if box is not None:
                box.close()
            self.remove(box_id)
            removed += 1
        removed += self.drop_orphan_records(living, held)
        return removed + self._sweep_abandoned(held)

    def drop_orphan_records(self, living: Collection[str], held: Held) -> int:
        """Forget records that no container stands behind; `living` was listed before."""
        orphans = [box_id for box_id in self._records.box_ids() if box_id not in living and box_id not in held]
        for box_id in orphans:
            self._records.remove(box_id)
        return len(orphans)

    def remove(self, box_id: str) -> None:
        """End and remove a container with its record.

        Raises:
            EngineUnavailable.
        """
        remove_container(self._client, NAME_PREFIX + box_id)
        self._records.remove(box_id)
        self._left.pop(box_id, None)

    def leave(self, box_id: str) -> None:
        """Note that a box is nobody's any more while the engine could not remove its container."""
        record = self._records.load(box_id)
        if record is not None:
            self._left[box_id] = record.workspace_dir
            # Nor does another life of this node take it for a session's.
            with suppress(OSError):
                self._records.save(replace(record, expires=0.0, expires_up=0.0))

    def remove_left(self, workspace_dir: Path) -> None:
        """Remove what was left on a workspace: no other box may have it before.

        Raises:
            EngineUnavailable.
        """
        for box_id in [one for one, place in list(self._left.items()) if place == str(workspace_dir)]:
            self.remove(box_id)

    def _sweep_abandoned(self, held: Held) -> int:
        """Remove what dead runs of any installation left created or ended: no record will ever lead to it."""
        filters = {"label": LABEL, "status": ["created", "exited", "dead"]}
        with translated("list of abandoned containers"):
            found = self._client.containers(all=True, filters=filters)
        removed = 0
        for container in found:
            box_id = container["Labels"].get(BOX_LABEL, "")
            if box_id in held or self._clock() - float(container["Created"]) < ABANDONED_S:
                continue
            log.info("an abandoned container is removed", extra={"container": container["Id"]})
            remove_container(self._client, container["Id"])
            removed += 1
        return removed
