"""Starts the box that an order asks for, on its workspace: boxes → **starter** → starting → engine."""

from contextlib import nullcontext

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, EngineUnavailable, LossReason, SandboxError
from worker import workspace
from worker.contract.orders import BoxOrder
from worker.errors import BoxUnavailable, SourceUnfit, WorkspaceRefused
from worker.files_in import put_files
from worker.own_disk import OwnDisks
from worker.progress import Progress
from worker.seats import Seat
from worker.setup import Setup
from worker.sources.held import Sources
from worker.specs import Specs
from worker.starting import start
from worker.warm import WarmBoxes
from worker.workspace import NOWHERE, Workspace


class Starter:
    """Starts boxes, or hands out warm ones. Thread-safe.

    Without `setup` no session gets an image of its own, without `sources` none that must be fetched.
    """

    def __init__(
        self,
        engine: Engine,
        specs: Specs,
        *,
        setup: Setup | None = None,
        sources: Sources | None = None,
        warm: WarmBoxes | None = None,
        disks: OwnDisks | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._setup = setup
        self._sources = sources
        self._warm = warm
        self._disks = disks
        self._progress = progress

    def cancel(self, session: str) -> None:
        """Give up what is made or fetched for a session."""
        if self._setup is not None:
            self._setup.cancel(session)
        if self._sources is not None:
            self._sources.cancel(session)

    def close(self) -> None:
        """Give up all that is made or fetched, and end the boxes that stand ready."""
        if self._setup is not None:
            self._setup.close()
        if self._sources is not None:
            self._sources.close()
        if self._warm is not None:
            self._warm.close()

    def start(self, seat: Seat, order: BoxOrder) -> Box:
        """Return a box on the order's workspace, which is the seat's then. The seat's lock is held.

        Raises:
            BoxUnavailable: workspace or box cannot be had; nothing is left behind.
        """
        try:
            order = self._specs.resolved(order)
            with self._sources.held(order) if self._sources is not None else nullcontext(order) as held:
                return self._start_on(seat, held)
        except (WorkspaceRefused, SandboxError) as exc:
            is_own_fault = isinstance(exc, SourceUnfit)
            raise BoxUnavailable(str(exc), is_passing=is_passing(exc), is_own_fault=is_own_fault) from exc
        except OSError as exc:
            # Such as a full disk under the box's record.
            raise BoxUnavailable(f"the node cannot keep the box's record: {exc}") from exc

    def workspace(self, order: BoxOrder) -> Workspace:
        """Return the order's workspace, made if it is not there."""
        most_bytes = self._specs.profile_of(order).limits().workspace_bytes
        return workspace.prepare(order, disks=self._disks, size_bytes=most_bytes)

    def _start_on(self, seat: Seat, order: BoxOrder) -> Box:
        """Start the box of an order whose directory is there."""
        if self._setup is not None:
            order = self._setup.resolved(order, lambda: self._specs.spec(order, NOWHERE))
        elif order.extras.makes_image:
            raise BoxUnavailable("this node makes no images, and the session wants one of its own")
        if self._warm is not None:
            # A warm box is born with a user of its own, and has nothing of a session in its environment.
            is_own = order.as_root or bool(order.extras.env_names)
            handed = None if is_own else self._warm.hand_over(order, self._specs.spec(order, NOWHERE))
            if handed is not None:
                return _filled(seat, order, *handed)
            self._warm.make_room()
        seat.workspace = seat.workspace or self.workspace(order)
        put_files(order, seat.workspace)
        spec = self._specs.spec(order, seat.workspace)
        with self._progress.waits(spec.image, order.session) if self._progress else nullcontext():
            return start(self._engine, spec, order.session, order.generation)


def is_passing(error: Exception) -> bool:
    """Return whether the engine failed, or somebody killed the box: the same start may succeed the next time."""
    if isinstance(error, BoxLost):
        return error.reason in (LossReason.KILLED, LossReason.ENGINE)
    return isinstance(error, EngineUnavailable) and not error.is_refusal


def _filled(seat: Seat, order: BoxOrder, box: Box, place: Workspace) -> Box:
    """Return a warm box that was handed over, made the seat's own."""
    seat.workspace = place
    try:
        put_files(order, place)
    except WorkspaceRefused:
        box.close()
        raise
    return box
