"""The boxes of this node's sessions: started when first needed, kept between calls, replaced when lost.

One lock a session: two calls of one session never start two boxes, and sessions do not wait for each other.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import BoxLost, SandboxError
from sandbox.spec import BoxSpec, Limits
from worker import workspace
from worker.contract.orders import BoxOrder, FinishOrder, FinishOutcome, WorkspaceMode
from worker.errors import BoxUnavailable, WorkspaceRefused
from worker.workspace import Workspace

log = logging.getLogger(__name__)

KEPT_FINISHED = 10_000
"""Ended sessions that a node remembers."""
CONCURRENT_STARTS = 4
"""More starts at once make the engine slower, not faster."""

KEPT_AND_LOST = (
    "The workspace and /spill are as they were; the working directory is back at /workspace, and running processes, "
    "installed packages and /tmp are gone."
)


@dataclass
class _Seat:
    """What this node knows of one session; guarded by its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    box: Box | None = None
    workspace: Workspace | None = None
    note: str = ""
    """Told to the model with its next answer."""


class Boxes:
    """Finds, starts, replaces and ends the boxes of this node's sessions. Thread-safe."""

    def __init__(self, engine: DockerEngine, dead_man_s: int, env: Mapping[str, str] | None = None) -> None:
        self._engine = engine
        self._dead_man_s = dead_man_s
        self._env = dict(env or {})
        self._seats: dict[str, _Seat] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        """Generation in which each session was ended here."""
        self._guard = threading.Lock()
        self._is_closed = False
        self._starts = threading.Semaphore(CONCURRENT_STARTS)

    def adopt(self) -> list[str]:
        """Take over the boxes that an earlier life of this node left running; return their sessions' ids."""
        adopted = []
        for record, box in self._engine.adopt():
            self._seat(record.session).box = box
            adopted.append(record.session)
        return adopted

    def box_for(self, order: BoxOrder) -> Box:
        """Return the session's box, started on its workspace if there is none.

        Raises:
            BoxUnavailable: workspace or box cannot be had; nothing is left behind.
        """
        seat = self._seat(order.session)
        with seat.lock:
            if self._is_closed:
                raise BoxUnavailable("the node is ending")
            # A message that was late, or sent twice, must not start a box that nobody ends.
            if order.generation <= self._finished.get(order.session, 0):
                raise BoxUnavailable("the session has ended")
            if seat.box is not None and not seat.box.is_alive():
                self._drop(seat, "the box ended")
            if seat.box is None:
                seat.box = self._start(seat, order)
            return seat.box

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

    def take_note(self, session: str) -> str:
        """Return what the model must be told about its box with its next answer, once; "" for nothing."""
        with self._guard:
            seat = self._seats.get(session)
        if seat is None or not seat.note:
            return ""
        with seat.lock:
            note, seat.note = seat.note, ""
            return note

    def finish(self, order: FinishOrder) -> FinishOutcome:
        """End the session's box and return what its workspace became. Idempotent."""
        seat = self._seat(order.box.session)
        with seat.lock:
            with self._guard:
                self._seats.pop(order.box.session, None)
                self._finished[order.box.session] = order.box.generation
                self._finished.move_to_end(order.box.session)
                while len(self._finished) > KEPT_FINISHED:
                    self._finished.popitem(last=False)
            _end(seat)
        try:
            if order.box.workspace_mode is WorkspaceMode.COPY:
                return workspace.finish_copy(order.box, apply=order.apply, keep=order.keep_workspace)
            return workspace.finish_bind(order.box)
        except (WorkspaceRefused, OSError) as exc:
            return FinishOutcome(session=order.box.session, error=str(exc))

    def close(self) -> None:
        """End every box of this node."""
        with self._guard:
            self._is_closed = True
            seats, self._seats = list(self._seats.values()), {}
        for seat in seats:
            # A start that is under way is waited for, so that its box is not left behind.
            with seat.lock:
                _end(seat)
        self._engine.close()

    def _seat(self, session: str) -> _Seat:
        with self._guard:
            return self._seats.setdefault(session, _Seat())

    def _drop(self, seat: _Seat, why: str) -> None:
        assert seat.box is not None
        seat.box.close()
        seat.box = None
        seat.note = f"Your sandbox was lost ({why}) and replaced by a fresh one. {KEPT_AND_LOST}"

    def _start(self, seat: _Seat, order: BoxOrder) -> Box:
        try:
            seat.workspace = seat.workspace or workspace.prepare(order)
            spec = self._spec(order, seat.workspace)
            with self._starts:
                return self._engine.start(spec, session=order.session, generation=order.generation)
        except (WorkspaceRefused, SandboxError) as exc:
            raise BoxUnavailable(str(exc)) from exc
        except OSError as exc:
            # Such as a full disk under the box's record.
            raise BoxUnavailable(f"the node cannot keep the box's record: {exc}") from exc

    def _spec(self, order: BoxOrder, place: Workspace) -> BoxSpec:
        return BoxSpec(
            image=order.image,
            workspace_dir=Path(place.directory),
            spill_dir=place.spill_dir,
            uid=place.uid,
            gid=place.gid,
            limits=Limits(),
            env=self._env,
            runtime=order.runtime,
            dead_man_s=self._dead_man_s,
            profile=order.profile,
        )


def _end(seat: _Seat) -> None:
    """End the seat's box, if it has one. The seat's lock is held."""
    box, seat.box = seat.box, None
    if box is None:
        return
    try:
        box.close()
    except (SandboxError, OSError) as exc:
        # Its dead-man timer ends it; what is left to do for the session must be done all the same.
        log.error("a box could not be ended", extra={"box_id": box.box_id, "error": str(exc)})
