"""One session from its request to its result: place and box, loop, end, clean-up."""

import asyncio
import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from redis.exceptions import RedisError

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.execute import Executor
from coordinator.cluster.patience import CANCELLED_S, patiently
from coordinator.cluster.placement import FINISH_S, Placement
from coordinator.cluster.seat import Seat
from coordinator.cluster.store import Store
from coordinator.ending import end
from coordinator.endpoint.model import ModelClient
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.errors import NoBox, RedisLost, TranscriptError
from coordinator.session.approvals import DEADLINE_S, Approvals, Approver, Lasting, OneAtATime
from coordinator.session.bounds import BUDGETS, Budgets
from coordinator.session.box_options import BoxOptions
from coordinator.session.breakers import Breakers, ShownTools
from coordinator.session.ceilings import NO_CEILING, Ceiling, Wants, usable_tools, within
from coordinator.session.checks import CheckOptions
from coordinator.session.events import Event, EventSink, Notice, SessionEnded, SessionStarted
from coordinator.session.history import History
from coordinator.session.home_tools import HOME_TOOLS, HomeTool
from coordinator.session.limits import Limits, LiveLimits
from coordinator.session.loop import Ending, SessionLoop, first
from coordinator.session.model_table import ModelTable
from coordinator.session.prompt import PromptFacts, system_prompt
from coordinator.session.result import SessionResult
from coordinator.session.spend import Spend, WallClock
from coordinator.session.step import StepRunner
from coordinator.session.subagents import DEPTH, Account, Lent, SubAgents, Talk, without_tasks
from coordinator.session.transcript import Transcript
from coordinator.session.workspace_choice import Chosen
from tools.registry import Registry
from tools.rules import Rules, rules_to_text
from tools.task import TASK_TOOL
from worker.contract import keys
from worker.contract.checks import Check
from worker.contract.orders import DEFAULT_PROFILE, BoxOrder, FinishOutcome, NodeLife, WorkspaceMode
from worker.contract.sources import Source

log = logging.getLogger(__name__)

_T = TypeVar("_T")

SEAT_REDIS_S = 60.0
"""How long a session that has not begun waits for Redis."""
LOCAL = "local"
"""Principal of sessions that a command line starts."""


@dataclass(frozen=True)
class SessionRequest:
    """What is asked of a session."""

    prompt: str
    workspace: Chosen
    image: str
    limits: Limits = field(default_factory=Limits)
    apply: bool = False
    """Put the changes of a private copy into the directory at the end, if the session completed."""
    box: BoxOptions = field(default_factory=BoxOptions)
    """What the box has beyond image and workspace."""
    principal: str = LOCAL
    ceiling: Ceiling = NO_CEILING
    """The most that the principal's sessions may have."""
    rules: Rules | None = None
    """The user's own rules; None if there are none."""
    is_read_only: bool = False
    """Only what certainly reads runs."""
    approval_s: float = DEADLINE_S
    """How long a human's answer is waited for."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the principal; told to own tools."""
    profile: str = DEFAULT_PROFILE
    """Name of the box's limits and boundaries."""
    budgets: Budgets = BUDGETS
    models: ModelTable = field(default_factory=ModelTable)
    """What is known of models."""
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""
    source: Source | None = None
    """What the node makes the private copy of, in place of the workspace's directory."""
    task_depth: int = DEPTH
    """How deep sub-agents may go; 0 for none at all."""
    check: CheckOptions | None = None
    """Judges the workspace at the end, unless the session failed or was cancelled."""

    @property
    def origin(self) -> str:
        """What the workspace was made from, for people."""
        return self.source.shown if self.source else os.fspath(self.workspace.directory)


@dataclass(frozen=True)
class Cluster:
    """The shared parts that sessions of one process use."""

    store: Store
    executor: Executor
    placement: Placement
    registry: Registry
    state_dir: Path
    requests: Requests
    breakers: Breakers


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
        wants = Wants(request.workspace.policy, request.image, request.limits)
        granted = within(wants, request.ceiling, request.principal)
        facts = request.models.of(model.settings.model)
        self.limits = LiveLimits(granted.limits, cut=request.ceiling.cut, facts=facts)
        self.spend, self.clock = Spend(facts), WallClock()
        self._request = replace(request, limits=granted.limits)
        self._tools = granted.tools
        usable = usable_tools(cluster.registry, granted.tools, is_read_only=request.is_read_only)
        self._registry = usable if request.task_depth > 0 else without_tasks(usable)
        self._cluster = cluster
        self._model = model
        self._approver, self._lasting = OneAtATime(approver), Lasting()
        self.session_id = session_id or new_session_id()
        self.session_dir = cluster.state_dir / "sessions" / self.session_id
        self._make_session_dir()
        self._secrets = [*secrets, *request.box.env.values()]
        self._transcript = Transcript.create(self.session_dir, self.session_id, 1, secrets=self._secrets)
        self._sinks: list[EventSink] = [self.clock, *sinks]
        self._node: NodeLife | None = None
        self._is_torn = False
        self._abandoned = asyncio.Event()
        self._abandoned_as = Ending("failed", "")
        self._finish_s = FINISH_S

    async def run(self, cancelled: asyncio.Event) -> SessionResult:
        """Return the session's result once its box is gone and its transcript is whole."""
        request = self._request
        system = self._system(request.limits.steps, request.is_read_only)
        history = History(system)
        history.add_user(request.prompt)
        account = Account(self.limits, self.spend, self.clock)
        talk = Talk(
            session=self.session_id,
            registry=self._registry,
            history=history,
            account=account,
            emit=self._emit,
            sync=self._transcript.sync,
            home_tools=self._home_tools(system, account),
            waits_for_box=request.box.extras.makes_image,
        )
        loop = self._loop(talk)
        conversation = asyncio.create_task(self._converse(loop, system, cancelled), name=f"talk {self.session_id}")
        ending = await first(conversation, self._abandoned) or self._abandoned_as
        finished = await self._finish(ending, loop.steps)
        if not ending.is_lost:
            request.box.forget(self.session_dir)
        return self._end(ending, loop, finished)

    def _loop(self, talk: Talk) -> SessionLoop:
        """Return the loop of a conversation, this session's own or a sub-agent's."""
        request, cluster = self._request, self._cluster
        steps = StepRunner(
            cluster.executor,
            cluster.store,
            Approvals(cluster.requests, self._approver, talk.emit, request.approval_s, self._lasting, agent=talk.agent),
            talk.emit,
            registry=talk.registry,
            home_tools=talk.home_tools,
            budgets=request.budgets,
        )
        strict = self._model.settings.strict_tools
        return SessionLoop(
            model=self._model,
            registry=talk.registry,
            shown=ShownTools(cluster.breakers, talk.registry, talk.session, talk.emit, strict=strict),
            steps=steps,
            emit=talk.emit,
            sync=talk.sync,
            limits=talk.account.limits,
            spend=talk.account.spend,
            clock=talk.account.clock,
            history=talk.history,
            waits_for_box=talk.waits_for_box,
        )

    def _home_tools(self, system: str, account: Account) -> Mapping[str, HomeTool]:
        if self._request.task_depth < 1:
            return HOME_TOOLS
        lent = Lent(
            session_dir=self.session_dir,
            started=self._started(system),
            system=self._system,
            make=self._loop,
            transcript=partial(Transcript.create, secrets=self._secrets),
            store=self._cluster.store,
        )
        agents = SubAgents(lent, self._registry, account, self._request.task_depth)
        return {**HOME_TOOLS, TASK_TOOL: agents.run}

    def _system(self, max_steps: int, is_read_only: bool) -> str:
        request = self._request
        return system_prompt(
            PromptFacts(
                policy=request.workspace.policy.value,
                is_copy=request.workspace.mode is WorkspaceMode.COPY,
                max_steps=max_steps,
                has_rules=request.rules is not None,
                is_read_only=is_read_only,
                allow_hosts=request.box.extras.allow_hosts,
            )
        )

    def abandon(self, ending: Ending, *, finish_s: float) -> None:
        """Let `run` return soon, whatever it waits for; the node may take `finish_s` to say what became of the work."""
        self._abandoned_as, self._finish_s = ending, finish_s
        self._abandoned.set()

    async def _converse(self, loop: SessionLoop, system: str, cancelled: asyncio.Event) -> Ending:
        seat = asyncio.create_task(self._take_seat(), name=f"seat {self.session_id}")
        try:
            self._emit(self._started(system))
            return await loop.run(seat, cancelled)
        except TranscriptError as exc:
            return Ending("failed", f"storage: {exc}")
        except Exception as exc:
            # A bug of ours ends this session, with its box and place given back, and no other one.
            log.exception("a session broke", extra={"session_id": self.session_id})
            return Ending("failed", f"internal: {type(exc).__name__}: {exc}")
        finally:
            await end(seat)

    def _make_session_dir(self) -> None:
        try:
            # A service keeps its record there first; who owns the session is decided by its transcript.
            self.session_dir.mkdir(parents=True, exist_ok=True)
            (self.session_dir / "spill").mkdir(mode=0o755)
            self._request.box.lay_out(self.session_dir)
        except OSError as exc:
            words = f"{self.session_dir} cannot be made: {exc}. SANDHOG_STATE_DIR names its root."
            raise TranscriptError(words) from exc

    def _emit(self, event: Event) -> None:
        """Hand an event on.

        Raises:
            TranscriptError: it cannot be kept; said once, for the session ends by it.
        """
        fault: TranscriptError | None = None
        if not self._is_torn:
            try:
                self._transcript(event)
            except TranscriptError as exc:
                self._is_torn, fault = True, exc
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except (OSError, ValueError) as exc:
                # Such as a terminal or a pipe that was closed: the work does not depend on who watches it.
                log.warning("events are shown no more", extra={"session_id": self.session_id, "error": str(exc)})
                self._sinks.remove(sink)
        if fault is not None:
            raise fault

    def _started(self, system: str) -> SessionStarted:
        request = self._request
        return SessionStarted(
            session_id=self.session_id,
            prompt=request.prompt,
            model=self._model.settings.model,
            policy=request.workspace.policy.value,
            workspace_mode=request.workspace.mode.value,
            workspace_reason=request.workspace.reason,
            workspace=request.origin,
            image=request.image,
            max_steps=request.limits.steps,
            limits=request.limits,
            allow_hosts=list(request.box.extras.allow_hosts),
            system=system,
            rules=rules_to_text(request.rules),
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
            profile=request.profile,
            extras=request.box.extras,
            source=request.source,
        )

    async def _take_seat(self) -> Seat:
        """Return the session's place with its box standing.

        Raises:
            NoBox: it cannot be had.
        """
        # A session that is cancelled cancels this task: nothing here waits for its flag.
        try:
            await patiently(partial(self._cluster.store.open_session, self.session_id), asyncio.Event(), SEAT_REDIS_S)
        except RedisLost as exc:
            raise NoBox(f"{exc} Start it, or correct SANDHOG_REDIS_URL.") from exc
        self._node = await self._cluster.placement.place(self.session_id)
        await self._cluster.placement.prepare(self._box, self._node)
        request = self._request
        return Seat(
            self._box,
            self._node,
            request.workspace.policy,
            request.principal,
            rules=request.rules,
            is_read_only=request.is_read_only,
            tools=self._tools,
            attributes=request.attributes,
        )

    async def _finish(self, ending: Ending, steps: StepRunner) -> FinishOutcome:
        """End the box, unless it is another coordinator's now; within the bounded time of an abandoned session."""
        if ending.is_lost:
            return FinishOutcome(session=self.session_id)
        finished = await self._unless_abandoned(asyncio.create_task(self._leave(ending, steps)))
        if finished is None:
            error = "The session was broken off before its node said what became of the workspace."
            return FinishOutcome(session=self.session_id, error=error)
        return finished

    async def _leave(self, ending: Ending, steps: StepRunner) -> FinishOutcome:
        """End the box and leave nothing of the session in Redis."""
        placement, store = self._cluster.placement, self._cluster.store
        away_s = CANCELLED_S if ending.status == "cancelled" else keys.OUTAGE_S
        finished, node = FinishOutcome(session=self.session_id), self._node
        if node is not None:
            apply = self._request.apply and ending.status == "completed"
            check = self._check(ending)
            finished = await placement.finish(self._box, node, apply=apply, check=check, away_s=away_s)
        if await placement.withdraw(self.session_id, node.node if node else None, away_s=away_s):
            try:
                await store.withdraw_grants(self.session_id, steps.granted)
                await store.forget_calls(steps.keys)
            except RedisError as exc:
                log.info("claims are left to expire", extra={"session_id": self.session_id, "error": str(exc)})
        return finished

    def _check(self, ending: Ending) -> Check | None:
        """Return what judges the session's work, its files laid out; None where there is nothing to judge."""
        check = self._request.check
        if check is None or ending.status not in ("completed", "stopped"):
            return None
        try:
            check.lay_out(self.session_dir)
        except OSError as exc:
            # The node says of a check whose files are missing that it was not run.
            log.warning("a check's files are missing", extra={"session_id": self.session_id, "error": str(exc)})
        return check.order

    async def _unless_abandoned(self, work: "asyncio.Task[_T]") -> _T | None:
        """Return the task's result; None where the session was abandoned and the task took too long after that."""
        abandoned = asyncio.create_task(self._abandoned.wait())
        try:
            await asyncio.wait({work, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=self._finish_s)
            return work.result() if work.done() else None
        finally:
            await end(abandoned, work)

    def _end(self, ending: Ending, loop: SessionLoop, finished: FinishOutcome) -> SessionResult:
        notes = [*finished.notes, *([finished.error] if finished.error else [])]
        if finished.conflicts:
            notes.append("Nothing was applied: these files changed meanwhile: " + ", ".join(finished.conflicts))
        patch: str | None = None
        try:
            patch = Path(finished.patch_path).read_text(errors="replace") if finished.patch_path else None
        except OSError as exc:
            notes.append(f"The patch cannot be read: {exc}")
        try:
            self._emit_end(ending, loop, notes, finished.patch_path)
            self._transcript.close()
        except TranscriptError as exc:
            notes.append(str(exc))
            if ending.status == "completed":
                ending = replace(ending, status="failed", stop_reason=f"storage: {exc}")
        workspace = self._request.workspace
        return SessionResult(
            session_id=self.session_id,
            status=ending.status,
            stop_reason=ending.stop_reason,
            text=ending.text,
            steps=loop.spend.steps,
            calls=loop.spend.calls,
            usage=loop.spend.usage,
            cost_usd=loop.spend.shown_usd,
            transcript=str(self._transcript.path),
            patch=patch,
            patch_path=finished.patch_path,
            applied=finished.applied,
            workspace=self._request.origin,
            workspace_mode=workspace.mode.value,
            workspace_reason=workspace.reason,
            notes=notes,
            check=finished.check,
        )

    def _emit_end(self, ending: Ending, loop: SessionLoop, notes: Iterable[str], patch_path: str | None) -> None:
        """Show the end, and keep it.

        Raises:
            TranscriptError: it was shown but cannot be kept.
        """
        ended = SessionEnded(
            status=ending.status,
            stop_reason=ending.stop_reason,
            text=ending.text,
            steps=loop.spend.steps,
            calls=loop.spend.calls,
            usage=loop.spend.usage,
            cost_usd=loop.spend.shown_usd,
            patch_path=patch_path,
            tool_list_changes=loop.shown.changes,
        )
        fault: TranscriptError | None = None
        events: list[Event] = [Notice(level="warning", text=note) for note in notes]
        for event in [*events, ended]:
            try:
                self._emit(event)
            except TranscriptError as exc:
                fault = exc
        if fault is not None:
            raise fault
