"""The boxes of this node's sessions: started when first needed, kept between calls, replaced when lost.

One lock a session: two calls of one session never start two boxes, and sessions do not wait for each other.
"""

import threading
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
        seat = self._seat(session)
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
            if seat.box is not None:
                seat.box.close()
                seat.box = None
            with self._guard:
                self._seats.pop(order.box.session, None)
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
                if seat.box is not None:
                    seat.box.close()
                    seat.box = None
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
