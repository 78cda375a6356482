"""The boxes of this node's sessions: started when first needed, kept between calls, replaced when lost.

One lock a session: two calls of one session never start two boxes, and sessions do not wait for each other.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, LossReason, SandboxError
from sandbox.lifeline import RELINK_S
from sandbox.pool import PoolSettings
from sandbox.profiles import Profile
from worker import checking, results, workspace
from worker.contract.checks import Check, CheckOutcome
from worker.contract.orders import BoxOrder, CopyOrder, CopyOutcome, FinishOrder, FinishOutcome, WorkspaceMode
from worker.disk import DiskWatch
from worker.errors import BoxUnavailable, ResultFailed, WorkspaceRefused
from worker.forking import copy_for_fork, standing_still
from worker.own_disk import OwnDisks
from worker.places import WAIT_S, Places
from worker.progress import Progress
from worker.seats import IDLE_NOTE, KEPT_AND_LOST, OUTPUT_NOTE, Seat, end
from worker.setup import Setup
from worker.sources.held import Sources
from worker.specs import Specs
from worker.spill import Spills
from worker.starter import Starter
from worker.warm import WarmBoxes
from worker.workspace import Workspace

log = logging.getLogger(__name__)

KEPT_FINISHED = 10_000
"""Ended sessions that a node remembers."""
RENEW_S = 60.0
"""How often the record of a box that is used gets a later expiry."""
IDLE_S = 900.0
DRAINED_IDLE_S = 30.0
"""The same on a node that an operator drains."""


class Boxes:
    """Finds, starts, replaces and ends the boxes of this node's sessions. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        dead_man_s: int,
        env: Mapping[str, str] | None = None,
        *,
        freeze_s: float = 45.0,
        setup: Setup | None = None,
        sources: Sources | None = None,
        pool: PoolSettings | None = None,
        nursery: Path | None = None,
        idle_s: float = IDLE_S,
        places: Places | None = None,
        profiles: Mapping[str, Profile] | None = None,
        allow_open_network: bool = False,
        spills: Spills | None = None,
        disk: DiskWatch | None = None,
        disks: OwnDisks | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`pool` and `nursery` (see `WarmBoxes`) keep boxes ready; `places` is where idle sessions give theirs back.

        See `Starter` for `setup` and `sources`.
        """
        self._engine = engine
        self._specs = Specs(dead_man_s, dict(env or {}), dict(profiles or {}), allow_open_network, freeze_s)
        self._spills = spills or Spills()
        self.starts = 0
        """Boxes that sessions were given."""
        self.losses = 0
        """Boxes that ended under their session."""
        self._idle_s = idle_s
        self._disk = disk
        self._disks = disks
        self._places = places
        self._warm = (
            WarmBoxes(engine, pool, nursery, self.used, disks) if pool is not None and nursery is not None else None
        )
        self._starter = Starter(
            engine, self._specs, setup=setup, sources=sources, warm=self._warm, disks=disks, progress=progress
        )
        self._seats: dict[str, Seat] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        """Generation in which each session was ended here."""
        self._checked_boxes: dict[str, Box] = {}
        """Boxes in which checks run, whose seats are locked."""
        self._guard = threading.Lock()
        self._is_closed = self._is_drained = False

    def adopt(self) -> list[str]:
        """Take over the boxes that an earlier life of this node left running; return their sessions' ids."""
        adopted = []
        for record, box in self._engine.adopt():
            if record.session:
                seat = self._seat(record.session)
                seat.session_dir = Path(record.spill_dir).parent
                seat.sit(box, record.generation)
                adopted.append(record.session)
            elif self._warm is not None:
                self._warm.take_back(record, box)
            else:
                box.close()
        if self._warm is not None:
            self._warm.sweep()
        return adopted

    def used(self) -> int:
        """Return how many boxes sessions have."""
        with self._guard:
            return sum(seat.box is not None for seat in self._seats.values())

    def keep_places(self) -> None:
        """Write down in Redis that the sessions with boxes here have their places.

        Raises:
            redis.RedisError: Redis does not answer.
        """
        if self._places is not None:
            self._places.keep(self._standing)

    def warm(self) -> int:
        """Return how many boxes stand ready for sessions to come."""
        return self._warm.idle() if self._warm is not None else 0

    def box_for(self, order: BoxOrder, place_wait_s: float = WAIT_S) -> Box:
        """Return the session's box, started on its workspace if there is none.

        Raises:
            BoxUnavailable: workspace or box cannot be had; nothing is left behind.
            NoPlace: every place has been another session's for `place_wait_s`.
        """
        seat = self._seat(order.session)
        with seat.lock:
            if self._is_closed:
                raise BoxUnavailable("the node is ending", is_passing=True)
            # A message that was late, or sent twice, must not start a box that nobody ends.
            if order.generation <= self._finished.get(order.session, 0):
                raise BoxUnavailable("the session has ended")
            if seat.box is not None and not seat.box.is_alive(RELINK_S):
                self._drop(seat, "the box ended")
            if seat.box is None:
                self._start(seat, order, place_wait_s)
                self.starts += 1
            assert seat.box is not None
            seat.session_dir = Path(order.session_dir)
            seat.idle_s = self._specs.profile_of(order).idle_s
            limit_bytes = self._specs.profile_of(order).limits().workspace_bytes
            if self._disk is not None and limit_bytes is not None:
                is_copy = order.workspace_mode is WorkspaceMode.COPY
                is_bounded = workspace.own_size_bytes(order) is not None
                directory = None if is_bounded else workspace.directory_of(order)
                self._disk.watch(seat.box.box_id, directory, is_copy=is_copy, limit_bytes=limit_bytes)
            self._go_on(seat, seat.box, order)
            return seat.box

    def warm_images(self) -> tuple[str, ...]:
        """Return the images of which boxes stand ready."""
        return self._warm.images() if self._warm is not None else ()

    def drain(self, is_drained: bool) -> None:
        """Let idle boxes end soon and keep none ready, or go back to what the settings say."""
        self._is_drained = is_drained
        if self._warm is not None:
            self._warm.hold(is_drained)

    def bounds(self, order: BoxOrder) -> dict[str, str]:
        """Return how each writable place of the order's box is bounded, and to what."""
        return self._specs.bounds(order)

    def end_overfull(self) -> list[str]:
        """End the boxes that wrote more to disk than they may, and return their sessions' ids."""
        if self._disk is None:
            return []
        with self._guard:
            seats = list(self._seats.items())
        boxes = [(session, seat, seat.box) for session, seat in seats if seat.box is not None]
        self._disk.keep({box.box_id for _, _, box in boxes})
        ended = []
        for session, seat, box in boxes:
            excess = self._disk.excess(box.box_id)
            if excess is None:
                continue
            # First, so that running calls hear the reason; they hold no lock of the seat.
            box.lose(LossReason.DISK, excess)
            with seat.lock:
                if seat.box is box:
                    self._drop(seat, f"it wrote too much: {excess}; remove what is not needed")
            ended.append(session)
        return ended

    def end_idle(self) -> list[str]:
        """End the boxes that nobody has used for long, give their places back, and return their sessions' ids."""
        with self._guard:
            seats = list(self._seats.items())
        ended = []
        for session, seat in seats:
            if not seat.lock.acquire(blocking=False):
                continue
            try:
                idle_s = seat.idle_s or self._idle_s
                idle_s = min(idle_s, DRAINED_IDLE_S) if self._is_drained else idle_s
                if seat.box is None or min(seat.box.idle_s, time.monotonic() - seat.used_at) < idle_s:
                    continue
                kept = f" {OUTPUT_NOTE}" if seat.keep_output(self._spills) else ""
                end(seat)
                self._tell(seat, IDLE_NOTE.format(minutes=f"{idle_s / 60:g}") + KEPT_AND_LOST + kept)
                if self._places is not None:
                    self._places.give_back(session)
                    seat.is_placeless = True
                ended.append(session)
            finally:
                seat.lock.release()
        return ended

    def running_box(self, session: str) -> Box | None:
        """Return the session's box if this node has one; never starts one."""
        with self._guard:
            seat = self._seats.get(session)
        return seat.box if seat else None

    def lost(self, session: str, box: Box, why: BoxLost) -> None:
        """Forget a box that is gone; the next call gets a fresh one and the model is told."""
        with self._guard:
            seat = self._seats.get(session)
        if seat is None:
            return
        with seat.lock:
            if seat.box is box:
                self._drop(seat, str(why))

    def take_note(self, session: str, conversation: str) -> str:
        """Return what must be told about the session's box with a conversation's next answer, once; "" for nothing.

        Args:
            session: Whose box it is.
            conversation: That session, or one of its sub-agents; a new one of these had no box to lose.
        """
        with self._guard:
            seat = self._seats.get(session)
            # One that has no place has no fresh box either: it is told once that stands.
            if seat is None or seat.is_placeless:
                return ""
            heard = seat.heard.get(conversation, 0 if conversation == session else seat.losses)
            seat.heard[conversation] = seat.losses
            return seat.note if heard < seat.losses else ""

    def finish(self, order: FinishOrder) -> FinishOutcome:
        """End the session's box and return what its workspace became. Idempotent."""
        self._starter.cancel(order.box.session)
        seat = self._seat(order.box.session)
        checked: CheckOutcome | None = None
        with seat.lock:
            with self._guard:
                self._finished[order.box.session] = order.box.generation
                self._finished.move_to_end(order.box.session)
                while len(self._finished) > KEPT_FINISHED:
                    self._finished.popitem(last=False)
            seat.session_dir = Path(order.box.session_dir)
            seat.keep_output(self._spills)
            if order.check is not None:
                checked = self._checked(seat, order.box, order.check)
            end(seat)
            with self._guard:
                self._seats.pop(order.box.session, None)
            # Whoever asked may not have waited for this, and the place was written back meanwhile.
            if self._places is not None and seat.generation <= order.box.generation:
                self._places.give_back(order.box.session)
        try:
            if order.box.workspace_mode is WorkspaceMode.COPY:
                # A checked copy holds what the model must not see.
                keep = order.keep_workspace and order.check is None
                outcome = results.finish_copy(order.box, apply=order.apply, keep=keep, disks=self._disks)
            else:
                outcome = results.finish_bind(order.box)
        except (WorkspaceRefused, OSError) as exc:
            outcome = FinishOutcome(session=order.box.session, error=str(exc))
        return outcome.model_copy(update={"check": checked})

    def copy(self, order: CopyOrder) -> CopyOutcome:
        """Copy the session's workspace for another session; what runs in its box stands still meanwhile. Idempotent."""
        with self._guard:
            seat = self._seats.get(order.box.session)
        most_bytes = self._specs.profile_of(order.box).limits().workspace_bytes
        with seat.lock if seat is not None else nullcontext(), standing_still(seat.box if seat is not None else None):
            return copy_for_fork(order, self._disks, most_bytes)

    def _checked(self, seat: Seat, order: BoxOrder, check: Check) -> CheckOutcome:
        """Return what the check says of the session's workspace, run now if it was not yet. The seat's lock is held."""
        session_dir = Path(order.session_dir)
        known = checking.known_outcome(session_dir)
        if known is not None:
            return known
        try:
            if seat.box is not None:
                checking.end_commands(seat.box)
            if order.workspace_mode is WorkspaceMode.COPY:
                results.collect_copy(order, self._disks)
            outcome = checking.run_check(check, order, *self._check_seat(seat, order, check))
            checking.remember(session_dir, outcome)
        except (BoxUnavailable, WorkspaceRefused, ResultFailed, OSError) as exc:
            return CheckOutcome(error=f"The check was not run: {exc}", is_infrastructure=True)
        finally:
            with self._guard:
                self._checked_boxes.pop(order.session, None)
        return outcome

    def _check_seat(self, seat: Seat, order: BoxOrder, check: Check) -> tuple[Box, Workspace]:
        """Return the box that the check runs in, and its workspace."""
        if check.is_fresh:
            end(seat)
            extras = order.extras.model_copy(update={"allow_hosts": check.hosts})
            order = order.model_copy(update={"extras": extras})
        if seat.box is None or not seat.box.is_alive():
            end(seat)
            self._start(seat, order, WAIT_S)
        assert seat.box is not None
        with self._guard:
            if self._is_closed:
                raise BoxUnavailable("the node is ending", is_passing=True)
            self._checked_boxes[order.session] = seat.box
        seat.workspace = seat.workspace or self._starter.workspace(order)
        return seat.box, seat.workspace

    def close(self) -> None:
        """End every box of this node."""
        with self._guard:
            self._is_closed = True
            seats, self._seats = list(self._seats.values()), {}
            checked = list(self._checked_boxes.values())
        for box in checked:
            box.close()
        self._starter.close()
        for seat in seats:
            # A start that is under way is waited for, so that its box is not left behind.
            with seat.lock:
                end(seat)
        if self._disks is not None:
            self._disks.close()
        self._engine.close()

    def _seat(self, session: str) -> Seat:
        with self._guard:
            return self._seats.setdefault(session, Seat())

    def _drop(self, seat: Seat, why: str) -> None:
        assert seat.box is not None
        self.losses += 1
        seat.box.close()
        seat.box = None
        self._tell(seat, f"Your sandbox was lost ({why}) and replaced by a fresh one. {KEPT_AND_LOST}")

    def _tell(self, seat: Seat, note: str) -> None:
        """Have the note told to every conversation that had the box."""
        with self._guard:
            seat.note, seat.losses = note, seat.losses + 1

    def _standing(self) -> list[str]:
        with self._guard:
            return [session for session, seat in self._seats.items() if seat.has_room]

    def _start(self, seat: Seat, order: BoxOrder, place_wait_s: float) -> None:
        """Start the seat's box, once the session has a place: only Redis knows. The seat's lock is held."""
        if self._places is not None:
            seat.is_placeless = True
            self._places.take(order.session, self.used, place_wait_s)
            seat.is_placeless = False
        seat.is_starting = True
        try:
            seat.sit(self._starter.start(seat, order), order.generation)
        finally:
            seat.is_starting = False

    def _go_on(self, seat: Seat, box: Box, order: BoxOrder) -> None:
        """Note in the box's record that it is used, and let it go on if it stood still."""
        seat.used_at = time.monotonic()
        try:
            if order.generation > seat.generation or seat.used_at - seat.renewed_at > RENEW_S:
                generation = max(order.generation, seat.generation)
                self._engine.renew(box, order.session, generation, self._specs.profile_of(order).lifetime_s)
                seat.generation, seat.renewed_at = generation, seat.used_at
            # Whoever orders under the present generation owns the session: nobody else need be asked.
            if box.is_frozen and not box.wants_frozen and order.generation == seat.generation:
                box.thaw()
        except (SandboxError, OSError) as exc:
            # The call that comes now tells what is wrong with the box, if anything is.
            log.warning("a box was not renewed", extra={"session_id": order.session, "error": str(exc)})
