"""Warm boxes of this node, with the directories they are born with: pool → **warm** → session's box and workspace."""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.pool import Newborn, PoolSettings, WarmPool
from sandbox.record import BoxRecord
from sandbox.spec import BoxSpec
from worker import newborn, workspace
from worker.contract.orders import BoxOrder
from worker.errors import WorkspaceRefused
from worker.own_disk import OwnDisks
from worker.workspace import Workspace

log = logging.getLogger(__name__)


class WarmBoxes:
    """Keeps boxes ready for private copies and gives each to one session. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        settings: PoolSettings,
        nursery: Path,
        used: Callable[[], int],
        disks: OwnDisks | None = None,
    ) -> None:
        """`nursery`: a directory of this node on the sessions' file system; `used`: boxes that sessions have."""
        self._engine = engine
        self._disks = disks
        self._nursery = nursery
        self._adopted: set[Path] = set()
        self._pool = WarmPool(
            settings,
            start=lambda spec, key: engine.start(spec, "", 0, pool_key=key),
            bear=lambda spec: newborn.bear(nursery, disks, spec.limits.workspace_bytes),
            bury=self._bury,
            used=used,
        )

    def take_back(self, record: BoxRecord, box: Box) -> None:
        """Take a warm box that an earlier life of this node left; one that was being handed over is ended."""
        folder = newborn.folder_of(Path(record.workspace_dir))
        born = newborn.newborn_in(folder)
        if self._pool.is_on and folder.parent == self._nursery and self._is_opened(folder) and newborn.is_unused(born):
            self._adopted.add(folder)
            self._pool.take_back(record, box, born)
        else:
            box.close()

    def sweep(self) -> None:
        """Remove directories that an earlier life of this node left without a box; before the first box is born."""
        if not self._nursery.is_dir():
            return
        for folder in self._nursery.iterdir():
            if folder not in self._adopted:
                self._bury(newborn.newborn_in(folder))

    def hand_over(self, order: BoxOrder, template: BoxSpec) -> tuple[Box, Workspace] | None:
        """A warm box with the order's workspace in it; None when there is none, or the session may not have one.

        Raises:
            EngineUnavailable: the engine cannot be asked for the image.
        """
        if not self._pool.is_on or not workspace.is_new(order):
            return None
        key = self._engine.pool_key(template)
        warm = self._pool.claim(template, key) if key is not None else None
        if warm is None:
            return None
        try:
            place = workspace.prepare(order, warm.newborn, disks=self._disks)
            self._engine.renew(
                warm.box,
                order.session,
                order.generation,
                template.lifetime_s,
                workspace_dir=str(place.directory),
                spill_dir=str(place.spill_dir),
                pool_key="",
            )
        except WorkspaceRefused as exc:
            # Whether it is the box's fault shows when a cold one is tried.
            log.info("a warm box could not be handed over", extra={"session_id": order.session, "error": str(exc)})
            self._pool.discard(warm)
            return None
        except BaseException:
            self._pool.discard(warm)
            raise
        # Both of its directories are the session's now.
        with suppress(OSError):
            warm.newborn.folder.rmdir()
        return warm.box, place

    def make_room(self) -> None:
        """End a warm box if the node has no room for one more."""
        self._pool.make_room()

    def images(self) -> tuple[str, ...]:
        """The images of which boxes stand ready."""
        return self._pool.images()

    def hold(self, is_held: bool) -> None:
        """Keep no boxes ready, or as many as before."""
        self._pool.hold(is_held)

    def idle(self) -> int:
        """How many boxes stand ready."""
        return self._pool.idle()

    def close(self) -> None:
        """End all warm boxes."""
        self._pool.close()

    def _is_opened(self, folder: Path) -> bool:
        try:
            if self._disks is not None:
                self._disks.open(folder)
        except OSError as exc:
            log.warning("a warm box's disk cannot be had", extra={"folder": str(folder), "error": str(exc)})
            return False
        return True

    def _bury(self, born: Newborn) -> None:
        try:
            newborn.bury(born, self._disks)
        except OSError as exc:
            log.warning("a warm box's directories are left", extra={"folder": str(born.folder), "error": str(exc)})
