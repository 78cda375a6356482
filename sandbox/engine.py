"""Boxes from the Docker engine: started, proven, adopted, removed.

With `container`, `creation` and `engine_stream` the only module that knows Docker.
"""

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker
from docker.utils import kwargs_from_env

from sandbox.box import Box
from sandbox.building import BuildClient
from sandbox.container import DockerContainer, remove_container, settled, state_of, translated
from sandbox.creation import BOX_LABEL, INSTALLATION_LABEL, NAME_PREFIX, NODE_LABEL, create
from sandbox.deaths import Deaths
from sandbox.door import Door
from sandbox.doors import Doors
from sandbox.egress.rules import parse_rules
from sandbox.egress.settings import EgressSettings, proxy_variables
from sandbox.engine_connections import is_beside, share_connections
from sandbox.engine_events import EngineEvents
from sandbox.errors import EngineUnavailable, LossReason, SandboxError
from sandbox.heart import Heart, Standing
from sandbox.image_files import ImageFiles
from sandbox.images import Image, Images, ImageSettings, PullClient
from sandbox.lifeline import Lifeline
from sandbox.machine import UnsupportedEngine, check_supported, parse_machine
from sandbox.making import Maker
from sandbox.pool import fingerprint
from sandbox.proofs import CANARY, Proofs, look_inside
from sandbox.reaper import Held, Reaper
from sandbox.record import BoxRecord, RecordStore, uptime_s
from sandbox.room import check_room
from sandbox.spec import MIB, BoxSpec

PULLED_IMAGES = "pulled-images"
"""Beside the records: which images were pulled, and when they were last used."""


@dataclass(frozen=True)
class EngineSettings:
    """Where the engine is and what it may use."""

    node: str
    """Name of the node that owns the boxes."""
    guest_folder: Path
    """The installed guest folder, as the engine's host sees it (see `guest_folder.install`)."""
    records_dir: Path
    proofs_dir: Path | None = None
    """Where it is kept what was proven once of images on engines; several nodes may share it. None: in memory."""
    base_url: str | None = None
    """The engine's address; None is DOCKER_HOST or the local socket."""
    timeout_s: float = 60.0
    """For one request to the engine."""
    heartbeat_s: float = 2.0
    max_connections: int = 1024
    concurrent_starts: int = 4
    """More at once make the engine slower, not faster."""
    min_free_bytes: int = 1024 * MIB
    """What the disks of the engine, the records and the workspace must have free before a box is started."""
    images: ImageSettings = field(default_factory=ImageSettings)
    on_pull: Callable[[str, str], None] = field(default=lambda image, words: None)
    """Told every two seconds how far the pull of an image is."""
    has_doors: bool = True
    """Whether guests may come to a socket of ours where they can, instead of relays executed in their boxes."""
    egress: EgressSettings = field(default_factory=EgressSettings)
    """How boxes with a way out are served."""
    standing: Callable[[BoxRecord], Standing] = field(default=lambda _: Standing.OURS)
    """Asked when a box stands still and could go on: is it still ours? In a thread of its own, again and again."""
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = field(default=lambda: secrets.token_hex(6))


class DockerEngine:
    """Starts, adopts and removes boxes of one node. Thread-safe."""

    def __init__(self, settings: EngineSettings) -> None:
        """Connect to the engine.

        Raises:
            EngineUnavailable: it does not answer.
            UnsupportedEngine: it is set up in a way that boxes cannot stand.
        """
        self._settings = settings
        self._records = RecordStore(settings.records_dir)
        with translated("connection to the engine"):
            self._client = docker.APIClient(**self._client_options(settings.timeout_s))
            share_connections(self._client, settings.max_connections)
            self.machine = parse_machine(self._client.info())
        try:
            check_supported(self.machine, settings.guest_folder)
        except UnsupportedEngine:
            self._client.close()
            raise
        self._proofs = Proofs(
            settings.proofs_dir,
            self.machine,
            settings.guest_folder,
            settings.records_dir.parent,
            self._start_canary,
        )
        self._doors = Doors(self._records, settings.has_doors and is_beside(self._client))
        self._boxes: dict[str, Box] = {}
        self._starting: set[str] = set()
        self._starts = threading.Semaphore(settings.concurrent_starts)
        self._lock = threading.Lock()
        self._reaper = Reaper(self._client, self._records, settings.node, self._records.installation, settings.clock)
        self.images = Images(
            self._client,
            lambda silence_s: PullClient(**self._client_options(silence_s)),
            settings.images,
            settings.records_dir / PULLED_IMAGES,
            settings.on_pull,
            clock=settings.clock,
        )
        self.maker = Maker(
            self._client, lambda timeout_s: BuildClient(**self._client_options(timeout_s)), settings.clock
        )
        self.image_files = ImageFiles(
            self.images, lambda timeout_s: docker.APIClient(**self._client_options(timeout_s))
        )
        self._deaths = Deaths(self._subscribe, self._lose_hung)
        self._image_events = EngineEvents(
            lambda: self._client.events(since=int(time.time()) - 1, decode=True, filters={"type": "image"}),
            lambda _: self.images.heard(),
            self.images.hear,
        )
        self._heart = Heart(self._living, self._standing, settings.heartbeat_s)

    def _client_options(self, timeout_s: float) -> dict[str, Any]:
        return {
            "version": "auto",
            "timeout": int(timeout_s),
            "num_pools": 8,
            "max_pool_size": self._settings.max_connections,
            **({"base_url": self._settings.base_url} if self._settings.base_url else kwargs_from_env()),
        }

    def start(self, spec: BoxSpec, session: str, generation: int, pool_key: str = "") -> Box:
        """A new box, proven to hold its controls. A failed start leaves nothing.

        Waits while as many others start as the engine takes at once.

        Raises:
            ImageMissing: the image is not on this engine and cannot be pulled.
            BadRule: a host of its egress cannot be read.
            NoRoom: a disk is nearly full.
            ControlNotEnforced: a control does not hold inside.
            EngineUnavailable: the engine failed, or all boxes are held (`freeze_all`).
            BoxLost: the box ended before it was ready.
        """
        parse_rules(spec.egress)
        if self._heart.is_held:
            raise EngineUnavailable("this node has been cut off for too long to start boxes: others may do so by now")
        # One of its own is as large as it should be; the disk that it lies on has the spill directory too.
        workspace_disk = spec.workspace_dir if spec.workspace_size_bytes is None else spec.spill_dir
        places = (self.machine.data_dir, self._settings.records_dir, workspace_disk)
        check_room(places, self._settings.min_free_bytes)
        self._reaper.remove_left(spec.workspace_dir)
        with self.images.held(spec.image, spec.principal) as image, self._starts:
            # Tried while the box itself starts; nobody gets the box before it is known.
            proof = self._proofs.begin(spec, image.proven_as)
            try:
                box = self._start_checked(spec, image, session, generation, pool_key)
            finally:
                # Also a start that failed leaves nothing behind.
                wait([proof])
            try:
                proof.result()
            except BaseException:
                box.close()
                raise
        return box

    def _start_checked(self, spec: BoxSpec, image: Image, session: str, generation: int, pool_key: str) -> Box:
        record = self._new_record(spec, image, session, generation, pool_key)
        self._starting.add(record.box_id)
        door: Door | None = None
        try:
            door = self._doors.open(record)
            record = replace(record, has_door=door is not None)
            self._records.save(record)
            self._make(spec, record, list(image.env))
            container = DockerContainer(self._client, record.container, self._deaths, door)
            box = self._link(record, container, (image.env, {**proxy_variables(spec.egress), **spec.env}))
            look_inside(box, spec)
            self._doors.learn(spec.runtime, door, container)
        except BaseException:
            self._discard(record)
            if door is not None:
                door.close()
            raise
        finally:
            self._starting.discard(record.box_id)
        return box

    def _lose_hung(self, name: str) -> None:
        with self._lock:
            box = self._boxes.get(name.removeprefix(NAME_PREFIX))
        if box is not None:
            box.lose(LossReason.OOM, "the box's memory limit ended it")

    def _start_canary(self, spec: BoxSpec) -> Box:
        with self.images.held(spec.image, spec.principal) as image:
            return self._start_checked(spec, image, CANARY, 0, "")

    def _new_record(self, spec: BoxSpec, image: Image, session: str, generation: int, pool_key: str) -> BoxRecord:
        box_id = self._settings.new_id()
        now = self._settings.clock()
        return BoxRecord(
            box_id=box_id,
            container=NAME_PREFIX + box_id,
            node=self._settings.node,
            session=session,
            generation=generation,
            born=now,
            expires=now + spec.lifetime_s,
            expires_up=uptime_s() + spec.lifetime_s,
            image=image.id,
            workspace_dir=str(spec.workspace_dir),
            spill_dir=str(spec.spill_dir),
            uid=spec.uid,
            gid=spec.gid,
            profile=spec.profile,
            installation=self._records.installation,
            guest_folder=str(self._settings.guest_folder),
            pool_key=pool_key,
            egress=spec.egress,
            has_door=self._doors.may_have(spec),
        )

    def _make(self, spec: BoxSpec, record: BoxRecord, image_env_names: list[str]) -> None:
        """Create and start the container.

        A request that timed out may have been granted: whether it was is looked up by the container's name.
        """
        folder, timeout_s = self._settings.guest_folder, self._settings.timeout_s
        door_folder = self._records.door_folder(record.box_id) if record.has_door else None
        with translated(f"start of box {record.box_id}"):
            settled(
                lambda: create(self._client, spec, record, folder, image_env_names, self.machine.cpus, door_folder),
                lambda: state_of(self._client, record.container) is not None,
                timeout_s,
            )
            settled(
                lambda: self._client.start(record.container),
                lambda: state_of(self._client, record.container) == "running",
                timeout_s,
            )

    def _link(self, record: BoxRecord, container: DockerContainer, env: tuple[Any, Any] | None) -> Box:
        carrier_of = self._settings.egress.carrier_of(record.box_id, record.egress)
        box = Box(record.box_id, container, env, self._forget, carrier_of)
        box.image_id = record.image
        with self._lock:
            self._boxes[record.box_id] = box
        return box

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

    def _forget(self, box: Lifeline) -> None:
        with self._lock:
            self._boxes.pop(box.box_id, None)
        (self._reaper.leave if box.is_left else self._records.remove)(box.box_id)

    def renew(self, box: Box, session: str, generation: int, lifetime_s: float, **changes: str) -> None:
        """Write into the box's record who has it, until when, and what else changed (names of its fields).

        Raises:
            SandboxError: the box has no record.
        """
        self._records.renew(box.box_id, session, generation, self._settings.clock(), lifetime_s, changes)

    def adopt(self) -> list[tuple[BoxRecord, Box]]:
        """This node's running boxes that have a valid record, linked again; its other containers are removed.

        Raises:
            EngineUnavailable.
        """
        held = Held(self._boxes, self._starting)
        living = self._reaper.containers()
        # Beside each other: sessions wait for them, and one that does not answer holds up no other one.
        with ThreadPoolExecutor(self._settings.concurrent_starts, thread_name_prefix="adopt") as threads:
            found = [threads.submit(self._adopted, *one) for one in living.items() if one[0] not in held]
        self._reaper.drop_orphan_records(living, held)
        return [adopted for one in found if (adopted := one.result()) is not None]

    def _adopted(self, box_id: str, state: str) -> tuple[BoxRecord, Box] | None:
        """Link a container again; remove it, and return None, where it is no box any more."""
        record = self._records.load(box_id)
        if state != "running" or record is None or record.session == CANARY or self._reaper.is_expired(record):
            self._reaper.remove(box_id)
            return None
        container = DockerContainer(self._client, record.container, self._deaths, self._doors.open(record))
        try:
            box = self._link(record, container, None)
        except SandboxError:
            container.let_go()
            self._reaper.remove(box_id)
            return None
        # It stands still if its node was away for long; whether it may go on is asked with the heartbeats.
        box.wants_frozen = False
        return record, box

    def sweep(self) -> int:
        """Remove this node's containers that are no box of ours, ended or expired, and records without a container.

        So are containers of any installation that never started or have ended and that nobody can need any more.

        Raises:
            EngineUnavailable.
        """
        return self._reaper.sweep(self._boxes, self._starting)

    def layer_bytes(self, box: str) -> int:
        """What a box wrote outside of its mounts; 0 when it is gone. The engine counts the files, which takes time.

        Raises:
            EngineUnavailable.
        """
        with translated(f"size of box {box}"):
            found = self._client.containers(size=True, filters={"label": f"{BOX_LABEL}={box}"})
        return sum(int(container.get("SizeRw") or 0) for container in found)

    def records(self) -> list[BoxRecord]:
        """What is on record of this node's boxes."""
        return self._records.all()

    def pool_key(self, spec: BoxSpec) -> str | None:
        """What two boxes have alike that may stand for each other; None when the image is not here yet, or not the
        principal's to use.

        Everything that is fixed when a box is made goes into it, save what is made anew for each: user and
        directories.

        Raises:
            EngineUnavailable.
        """
        image = self.images.seen_lately(spec.image)
        if image is None or not self.images.may_use(image, spec.principal):
            return None
        return fingerprint(spec, image.id, str(self._settings.guest_folder))

    def freeze_all(self) -> None:
        """Let the commands of all boxes stand still until `release_all`; comes back before they do."""
        self._heart.freeze_all()

    def release_all(self) -> None:
        """Let the boxes go on whose session is still theirs; the others end."""
        self._heart.release_all()

    def image_exists(self, ref: str) -> bool:
        """True when the image is on this engine.

        Raises:
            EngineUnavailable.
        """
        return self.images.find(ref) is not None

    def close(self) -> None:
        """Stop heartbeats and close links. Boxes live on until they are adopted or their dead-man timer ends them."""
        self._deaths.close()
        self._image_events.close()
        self._heart.close()
        with self._lock:
            boxes = list(self._boxes.values())
            self._boxes.clear()
        for box in boxes:
            box.let_go()
        self._client.close()

    def _subscribe(self) -> Any:
        labels = [f"{NODE_LABEL}={self._settings.node}", f"{INSTALLATION_LABEL}={self._records.installation}"]
        return self._client.events(decode=True, filters={"label": labels, "event": ["oom", "die", "kill"]})

    def _living(self) -> list[Box]:
        with self._lock:
            return list(self._boxes.values())

    def _standing(self, box: Box) -> Standing:
        record = self._records.load(box.box_id)
        return Standing.LOST if record is None else self._settings.standing(record)
