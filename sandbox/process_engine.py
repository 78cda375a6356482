"""Boxes that are none: the same guest as plain processes of this machine. For unit tests only.

Nothing is isolated: commands run as the user of the tests, see the whole machine, and may do to it whatever that user
may. Image, limits, network and user of a specification mean nothing here. No node can be set up to use it.
"""

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from sandbox.heart import Heart, Standing
from sandbox.lifeline import Lifeline
from sandbox.process_container import ProcessContainer
from sandbox.process_marks import FIRST_NUMBER
from sandbox.record import BoxRecord, RecordStore, uptime_s
from sandbox.spec import BoxSpec

FOLDER_PREFIX = "hog-unboxed-"


class NotAllowed(SandboxError):
    """A box without isolation was not asked for in so many words, or was asked for more than it can be."""


class ProcessEngine:
    """Starts, adopts and removes boxes without isolation. Thread-safe."""

    def __init__(
        self,
        node: str,
        records_dir: Path,
        *,
        allow_no_isolation: bool = False,
        heartbeat_s: float = 2.0,
        standing: Callable[[BoxRecord], Standing] = lambda _: Standing.OURS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Settings as in `engine.EngineSettings`; boxes of different nodes need different `records_dir`.

        Raises:
            NotAllowed: unless `allow_no_isolation` is True.
        """
        if allow_no_isolation is not True:
            raise NotAllowed(
                "ProcessEngine isolates nothing: commands run as you, on this machine. It is for unit tests that give "
                "it harmless commands and say allow_no_isolation=True; everything else needs DockerEngine."
            )
        self._node = node
        self._asked_standing = standing
        self._clock = clock
        self._records = RecordStore(records_dir)
        self._boxes: dict[str, Box] = {}
        self._starting: set[str] = set()
        self._lock = threading.Lock()
        self._heart = Heart(self._living, self._standing, heartbeat_s)

    def start(self, spec: BoxSpec, session: str, generation: int, pool_key: str = "") -> Box:
        """A new box. A failed start leaves nothing.

        Raises:
            NotAllowed: it was to have a way out, which would be the machine's own.
            BoxLost: it ended before it was ready.
        """
        if spec.egress:
            raise NotAllowed("a box without isolation carries no connections: it has the machine's own network")
        number = FIRST_NUMBER + secrets.randbits(60)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        container = ProcessContainer(number, folder)
        record = self._new_record(spec, container, session, generation, pool_key)
        with self._lock:
            self._starting.add(record.box_id)
        try:
            self._records.save(record)
            container.launch(spec)
            return self._link(record, container, spec)
        except BaseException:
            container.remove()
            self._records.remove(record.box_id)
            raise
        finally:
            with self._lock:
                self._starting.discard(record.box_id)

    def _new_record(
        self, spec: BoxSpec, container: ProcessContainer, session: str, generation: int, pool_key: str
    ) -> BoxRecord:
        now = self._clock()
        return BoxRecord(
            box_id=f"{container.number:x}",
            container=str(container.folder),
            node=self._node,
            session=session,
            generation=generation,
            born=now,
            expires=now + spec.lifetime_s,
            expires_up=uptime_s() + spec.lifetime_s,
            image=spec.image,
            workspace_dir=str(spec.workspace_dir),
            spill_dir=str(spec.spill_dir),
            uid=os.geteuid(),
            gid=os.getegid(),
            profile=spec.profile,
            installation=self._records.installation,
            pool_key=pool_key,
        )

    def _link(self, record: BoxRecord, container: ProcessContainer, spec: BoxSpec | None) -> Box:
        env = None if spec is None else ({"PATH": os.environ.get("PATH", os.defpath)}, spec.env)
        box = Box(record.box_id, container, env, self._forget)
        with self._lock:
            self._boxes[record.box_id] = box
        return box

    def renew(self, box: Box, session: str, generation: int, lifetime_s: float, **changes: str) -> None:
        """Write into the box's record who has it, until when, and what else changed (names of its fields).

        Raises:
            SandboxError: the box has no record.
        """
        self._records.renew(box.box_id, session, generation, self._clock(), lifetime_s, changes)

    def adopt(self) -> list[tuple[BoxRecord, Box]]:
        """This node's running boxes that have a valid record, linked again; its others are removed."""
        adopted = []
        for box_id in self._unheld():
            record, container = self._records.load(box_id), self._container_of(box_id)
            if record is None or container is None or record.is_past(self._clock()) or container.fate() is not None:
                self._remove(box_id)
                continue
            try:
                box = self._link(record, container, None)
            except SandboxError:
                self._remove(box_id)
                continue
            box.wants_frozen = self._heart.is_held
            adopted.append((record, box))
        return adopted

    def sweep(self) -> int:
        """Remove what is on record, is no box of ours, and has ended or expired."""
        removed = 0
        for box_id in self._unheld():
            record, container = self._records.load(box_id), self._container_of(box_id)
            if record is None or container is None or record.is_past(self._clock()) or container.fate() is not None:
                self._remove(box_id)
                removed += 1
        return removed

    def _unheld(self) -> list[str]:
        with self._lock:
            held = {*self._boxes, *self._starting}
        return [box_id for box_id in self._records.box_ids() if box_id not in held]

    def _container_of(self, box_id: str) -> ProcessContainer | None:
        record = self._records.load(box_id)
        return None if record is None else ProcessContainer(int(box_id, 16), Path(record.container))

    def _remove(self, box_id: str) -> None:
        container = self._container_of(box_id)
        if container is not None:
            container.remove()
        self._records.remove(box_id)

    def _forget(self, box: Lifeline) -> None:
        with self._lock:
            self._boxes.pop(box.box_id, None)
        self._records.remove(box.box_id)

    def records(self) -> list[BoxRecord]:
        """What is on record of this node's boxes."""
        return self._records.all()

    def pool_key(self, _spec: BoxSpec) -> str | None:
        """None: a box without isolation knows its directories by their paths, so it cannot be handed over."""
        return None

    def image_exists(self, _ref: str) -> bool:
        """True: images mean nothing here."""
        return True

    def freeze_all(self) -> None:
        """Let the commands of all boxes stand still until `release_all`; comes back before they do."""
        self._heart.freeze_all()

    def release_all(self) -> None:
        """Let the boxes go on whose session is still theirs; the others end."""
        self._heart.release_all()

    def close(self) -> None:
        """Stop heartbeats and close links. Boxes live on until they are adopted or their dead-man timer ends them."""
        self._heart.close()
        with self._lock:
            boxes = list(self._boxes.values())
            self._boxes.clear()
        for box in boxes:
            box.let_go()

    def _living(self) -> list[Box]:
        with self._lock:
            return list(self._boxes.values())

    def _standing(self, box: Box) -> Standing:
        record = self._records.load(box.box_id)
        return Standing.LOST if record is None else self._asked_standing(record)
