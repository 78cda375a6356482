"""One session from its request to its result: place and box, loop, end, clean-up."""

import asyncio
import logging
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from redis.exceptions import RedisError

from coordinator.approvals import Approver
from coordinator.errors import TranscriptError
from coordinator.events import Event, EventSink, Notice, SessionEnded, SessionStarted
from coordinator.execute import Executor
from coordinator.history import History
from coordinator.loop import Ending, SessionLoop
from coordinator.model import ModelClient
from coordinator.placement import Placement
from coordinator.prompt import PromptFacts, system_prompt
from coordinator.result import SessionResult
from coordinator.step import Seat, StepRunner
from coordinator.store import Store
from coordinator.transcript import Transcript
from coordinator.workspace_choice import Chosen
from tools.registry import Registry
from worker.contract.orders import BoxOrder, FinishOutcome, NodeLife, WorkspaceMode

log = logging.getLogger(__name__)

LOCAL = "local"
"""Principal of sessions that a command line starts."""


@dataclass(frozen=True)
class SessionRequest:
    """What is asked of a session."""

    prompt: str
    workspace: Chosen
    image: str
    max_steps: int
    apply: bool = False
    """Put the changes of a private copy into the directory at the end, if the session completed."""
    principal: str = LOCAL


@dataclass(frozen=True)
class Cluster:
    """The shared parts that sessions of one process use."""

    store: Store
    executor: Executor
    placement: Placement
    registry: Registry
    state_dir: Path


def new_session_id() -> str:
    """Return an id that sorts by time: `20300131-120000-1a2b3c4d`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


class SessionRunner:
    """Runs one session; never raises for what happens in it."""

    def __init__(
        self,
        request: SessionRequest,
        *,
        cluster: Cluster,
        model: ModelClient,
        approver: Approver,
        sinks: Iterable[EventSink],
        secrets: Iterable[str] = (),
        session_id: str | None = None,
    ) -> None:
        self._request = request
        self._cluster = cluster
        self._model = model
        self._approver = approver
        self.session_id = session_id or new_session_id()
        self.session_dir = cluster.state_dir / "sessions" / self.session_id
        self._make_session_dir()
        self._transcript = Transcript.create(self.session_dir, self.session_id, 1, secrets=secrets)
        self._sinks: tuple[EventSink, ...] = (self._transcript, *sinks)
        self._node: NodeLife | None = None
        self._is_torn = False

    async def run(self, cancelled: asyncio.Event) -> SessionResult:
        """Return the session's result once its box is gone and its transcript is whole."""
        request = self._request
        system = system_prompt(
            PromptFacts(
                policy=request.workspace.policy.value,
                is_copy=request.workspace.mode is WorkspaceMode.COPY,
                max_steps=request.max_steps,
            )
        )
        history = History(system)
        history.add_user(request.prompt)
        self._emit(self._started(system))
        steps = StepRunner(self._cluster.executor, self._cluster.store, self._approver, self._emit)
        loop = SessionLoop(
            model=self._model,
            registry=self._cluster.registry,
            steps=steps,
            emit=self._emit,
            sync=self._transcript.sync,
            max_steps=request.max_steps,
            history=history,
        )
        seat = asyncio.create_task(self._take_seat(), name=f"seat {self.session_id}")
        try:
            ending = await loop.run(seat, cancelled)
        except TranscriptError as exc:
            self._is_torn = True
            ending = Ending("failed", f"storage: {exc}")
        finally:
            seat.cancel()
            await asyncio.gather(seat, return_exceptions=True)
        finished = await self._finish(ending)
        await self._forget(steps)
        return self._end(ending, loop, finished)

    def _make_session_dir(self) -> None:
        try:
            self.session_dir.mkdir(parents=True)
            (self.session_dir / "spill").mkdir(mode=0o755)
        except OSError as exc:
            words = f"{self.session_dir} cannot be made: {exc}. SANDHOG_STATE_DIR names its root."
            raise TranscriptError(words) from exc

    def _emit(self, event: Event) -> None:
        if self._is_torn:
            return
        for sink in self._sinks:
            sink(event)

    def _started(self, system: str) -> SessionStarted:
        request = self._request
        return SessionStarted(
            session_id=self.session_id,
            prompt=request.prompt,
            model=self._model.settings.model,
            policy=request.workspace.policy.value,
            workspace_mode=request.workspace.mode.value,
            workspace_reason=request.workspace.reason,
            workspace=str(request.workspace.directory),
            image=request.image,
            max_steps=request.max_steps,
            system=system,
        )

    @property
    def _box(self) -> BoxOrder:
        request = self._request
        return BoxOrder(
            session=self.session_id,
            generation=1,
            session_dir=str(self.session_dir),
            image=request.image,
            workspace=str(request.workspace.directory),
            workspace_mode=request.workspace.mode,
            as_root=request.workspace.as_root,
        )

    async def _take_seat(self) -> Seat:
        """Return the session's place with its box standing."""
        while True:
            try:
                await self._cluster.store.open_session(self.session_id)
                break
            except RedisError as exc:
                log.info("waiting for Redis", extra={"error": str(exc)})
                await asyncio.sleep(0.02)
        self._node = await self._cluster.placement.place(self.session_id)
        await self._cluster.placement.prepare(self._box, self._node)
        return Seat(self._box, self._node, self._request.workspace.policy, self._request.principal)

    async def _finish(self, ending: Ending) -> FinishOutcome:
        if self._node is None:
            return FinishOutcome(session=self.session_id)
        apply = self._request.apply and ending.status == "completed"
        return await self._cluster.placement.finish(self._box, self._node, apply=apply)

    async def _forget(self, steps: StepRunner) -> None:
        try:
            await self._cluster.store.forget_calls(steps.keys)
        except RedisError as exc:
            log.info("claims are left to expire", extra={"session_id": self.session_id, "error": str(exc)})

    def _end(self, ending: Ending, loop: SessionLoop, finished: FinishOutcome) -> SessionResult:
        notes = [*finished.notes, *([finished.error] if finished.error else [])]
        if finished.conflicts:
            notes.append("Nothing was applied: these files changed meanwhile: " + ", ".join(finished.conflicts))
        for note in notes:
            self._emit(Notice(level="warning", text=note))
        self._emit(
            SessionEnded(
                status=ending.status,
                stop_reason=ending.stop_reason,
                text=ending.text,
                steps=loop.tally.steps,
                calls=loop.tally.calls,
                usage=loop.tally.usage,
                patch_path=finished.patch_path,
            )
        )
        self._transcript.close()
        workspace = self._request.workspace
        patch = Path(finished.patch_path).read_text(errors="replace") if finished.patch_path else None
        return SessionResult(
            session_id=self.session_id,
            status=ending.status,
            stop_reason=ending.stop_reason,
            text=ending.text,
            steps=loop.tally.steps,
            calls=loop.tally.calls,
            usage=loop.tally.usage,
            transcript=str(self._transcript.path),
            patch=patch,
            patch_path=finished.patch_path,
            applied=finished.applied,
            workspace=os.fspath(workspace.directory),
            workspace_mode=workspace.mode.value,
            workspace_reason=workspace.reason,
            notes=notes,
        )
