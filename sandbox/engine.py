"""Boxes from the Docker engine: started, proven, adopted, removed.

With `container`, `creation` and `engine_stream` the only module that knows Docker.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker
from docker.utils import kwargs_from_env

from sandbox import controls
from sandbox.box import Box
from sandbox.container import DockerContainer, remove_container, translated
from sandbox.creation import BOX_LABEL, NAME_PREFIX, NODE_LABEL, create
from sandbox.deaths import Deaths
from sandbox.errors import EngineUnavailable, ImageMissing, SandboxError
from sandbox.record import BoxRecord, RecordStore
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec

PROBE_TIMEOUT_MS = 10_000


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
    """For one request to the engine."""
    heartbeat_s: float = 2.0
    max_connections: int = 1024
    may_thaw: Callable[[Box], bool] = field(default=lambda _: True)
    """Asked when a box froze by itself for want of heartbeats and they come again: is it still ours?"""
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = field(default=lambda: secrets.token_hex(6))


class DockerEngine:
    """Starts, adopts and removes boxes of one node. Thread-safe."""

    def __init__(self, settings: EngineSettings) -> None:
        """Connect to the engine.

        Raises:
            EngineUnavailable: it does not answer.
        """
        self._settings = settings
        self._records = RecordStore(settings.records_dir)
        with translated("connection to the engine"):
            self._client = docker.APIClient(
                version="auto",
                timeout=int(settings.timeout_s),
                num_pools=8,
                max_pool_size=settings.max_connections,
                **({"base_url": settings.base_url} if settings.base_url else kwargs_from_env()),
            )
        self._boxes: dict[str, Box] = {}
        self._starting: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._deaths = Deaths(self._subscribe)
        self._heart = threading.Thread(target=self._beat, name="box-heartbeat", daemon=True)
        self._heart.start()

    def start(self, spec: BoxSpec, session: str, generation: int) -> Box:
        """A new box, proven to hold its controls. A failed start leaves nothing.

        Raises:
            ImageMissing: the image is not on this engine.
            ControlNotEnforced: a control does not hold inside.
            EngineUnavailable: the engine failed.
            BoxLost: the box ended before it was ready.
        """
        with translated(f"image {spec.image}"):
            image = self._client.inspect_image(spec.image)  # type: ignore[no-untyped-call]
        image_env = _parse_env(image.get("Config", {}).get("Env") or [])
        box_id = self._settings.new_id()
        now = self._settings.clock()
        record = BoxRecord(
            box_id=box_id,
            container=NAME_PREFIX + box_id,
            node=self._settings.node,
            session=session,
            generation=generation,
            born=now,
            expires=now + spec.lifetime_s,
            image=image["Id"],
            workspace_dir=str(spec.workspace_dir),
            spill_dir=str(spec.spill_dir),
            uid=spec.uid,
            gid=spec.gid,
            profile=spec.profile,
        )
        self._starting.add(box_id)
        try:
            self._records.save(record)
            with translated(f"start of box {box_id}"):
                create(self._client, spec, record, self._settings.guest_folder, list(image_env))
                self._client.start(record.container)
            box = self._link(record, (image_env, spec.env))
            self._prove(box, spec)
        except BaseException:
            self._discard(record)
            raise
        finally:
            self._starting.discard(box_id)
        return box

    def _link(self, record: BoxRecord, env: tuple[Any, Any] | None) -> Box:
        container = DockerContainer(self._client, record.container, self._deaths)
        box = Box(record.box_id, container, env, self._forget)
        with self._lock:
            self._boxes[record.box_id] = box
        return box

    def _prove(self, box: Box, spec: BoxSpec) -> None:
        mark = CallMark(key="sandhog-probe", digest="", session="sandhog-probe", generation=0, step=0)
        answer = box.run(RunRequest(mark, argv=controls.PROBE_ARGV, cwd="/", timeout_ms=PROBE_TIMEOUT_MS))
        controls.check(spec, box.info, answer.stdout.text())

    def _discard(self, record: BoxRecord) -> None:
        """Take back a start that failed."""
        with self._lock:
            box = self._boxes.pop(record.box_id, None)
        if box is not None:
            box.let_go()
        try:
            remove_container(self._client, record.container)
        except EngineUnavailable:
            # The record stays, so that a sweep removes the container when the engine is back.
            return
        self._records.remove(record.box_id)

    def _forget(self, box: Box) -> None:
        with self._lock:
            self._boxes.pop(box.box_id, None)
        self._records.remove(box.box_id)

    def renew(self, box: Box, session: str, generation: int, lifetime_s: float) -> None:
        """Write into the box's record who has it, and until when.

        Raises:
            SandboxError: the box has no record.
        """
        record = self._records.load(box.box_id)
        if record is None:
            raise SandboxError(f"box {box.box_id} has no record")
        expires = self._settings.clock() + lifetime_s
        self._records.save(replace(record, session=session, generation=generation, expires=expires))

    def adopt(self) -> list[tuple[BoxRecord, Box]]:
        """This node's running boxes that have a valid record, linked again; its other containers are removed.

        Raises:
            EngineUnavailable.
        """
        adopted = []
        for box_id, state in self._containers().items():
            if box_id in self._boxes or box_id in self._starting:
                continue
            record = self._records.load(box_id)
            if state != "running" or record is None or record.expires < self._settings.clock():
                self._remove(box_id)
                continue
            try:
                adopted.append((record, self._link(record, None)))
            except SandboxError:
                self._remove(box_id)
        self._drop_orphan_records()
        return adopted

    def sweep(self) -> int:
        """Remove this node's containers that are no box of ours, ended or expired, and records without a container.

        Raises:
            EngineUnavailable.
        """
        removed = 0
        for box_id, state in self._containers().items():
            if box_id in self._starting:
                continue
            record = self._records.load(box_id)
            is_due = record is None or record.expires < self._settings.clock()
            if state != "running" or is_due or box_id not in self._boxes:
                box = self._boxes.get(box_id)
                if box is not None:
                    box.close()
                self._remove(box_id)
                removed += 1
        return removed + self._drop_orphan_records()

    def _containers(self) -> dict[str, str]:
        """State of each container of this node by box id."""
        with translated("list of boxes"):
            found = self._client.containers(all=True, filters={"label": f"{NODE_LABEL}={self._settings.node}"})
        return {container["Labels"][BOX_LABEL]: container["State"] for container in found}

    def _remove(self, box_id: str) -> None:
        remove_container(self._client, NAME_PREFIX + box_id)
        self._records.remove(box_id)

    def _drop_orphan_records(self) -> int:
        living = self._containers()
        orphans = [
            box_id for box_id in self._records.box_ids() if box_id not in living and box_id not in self._starting
        ]
        for box_id in orphans:
            self._records.remove(box_id)
        return len(orphans)

    def image_exists(self, ref: str) -> bool:
        """True when the image is on this engine.

        Raises:
            EngineUnavailable.
        """
        try:
            with translated(f"image {ref}"):
                self._client.inspect_image(ref)  # type: ignore[no-untyped-call]
        except ImageMissing:
            return False
        return True

    def close(self) -> None:
        """Stop heartbeats and close links. Boxes live on until they are adopted or their dead-man timer ends them."""
        self._closed.set()
        self._deaths.close()
        with self._lock:
            boxes = list(self._boxes.values())
            self._boxes.clear()
        for box in boxes:
            box.let_go()
        self._heart.join(self._settings.timeout_s)
        self._client.close()

    def _subscribe(self) -> Any:
        filters = {"label": f"{NODE_LABEL}={self._settings.node}", "event": ["oom", "die", "kill"]}
        return self._client.events(decode=True, filters=filters)

    def _beat(self) -> None:
        while not self._closed.wait(self._settings.heartbeat_s):
            with self._lock:
                boxes = list(self._boxes.values())
            for box in boxes:
                box.beat()
                if box.is_frozen and not box.wants_frozen and self._settings.may_thaw(box):
                    threading.Thread(target=_thaw, args=(box,), name=f"thaw-{box.box_id}", daemon=True).start()


def _thaw(box: Box) -> None:
    try:
        box.thaw()
    except SandboxError:
        # The box is lost; whoever uses it hears of it.
        return


def _parse_env(lines: list[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if "=" in line)
