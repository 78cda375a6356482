"""One session from its request to its result: place and box, loop, end, clean-up."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from coordinator.cluster.parts import Cluster
from coordinator.cluster.placement import FINISH_S
from coordinator.cluster.seat import Seat
from coordinator.ending import end, first
from coordinator.endpoint.model import ModelClient
from coordinator.errors import LostSession, TranscriptError
from coordinator.session.approvals import Approvals, Approver, Lasting, OneAtATime
from coordinator.session.breakers import ShownTools
from coordinator.session.catching_up import Continued, OpenAnswers
from coordinator.session.ceilings import Wants, usable_tools, within
from coordinator.session.closing import decide, ended, result_of
from coordinator.session.context import Context, keeper
from coordinator.session.conversation import Conversation, NextMessage
from coordinator.session.copying import Copying, TakenStep
from coordinator.session.emitting import Emitter
from coordinator.session.events import EventSink
from coordinator.session.history import History
from coordinator.session.home_tools import HOME_TOOLS, HomeTool
from coordinator.session.limits import LiveLimits
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.opening import make_session_dir, resumed, started
from coordinator.session.place import SessionPlace
from coordinator.session.prompt import PromptFacts, system_prompt
from coordinator.session.request import SessionRequest, new_session_id
from coordinator.session.reserve import ENDING_BYTES, RESERVE_BYTES, Reserve
from coordinator.session.result import SessionResult, notes_of, read_patch
from coordinator.session.session_events import TAKEOVER, Notice, SessionStarted, SystemWritten
from coordinator.session.spend import Spend, WallClock
from coordinator.session.step import StepRunner
from coordinator.session.subagents import SubAgents, without_tasks
from coordinator.session.talk import Account, Lent, Talk
from coordinator.session.transcript import Transcript
from tools.mcp import mcp_tool
from tools.registry import LiveRegistry, Registry
from tools.task import TASK_TOOL
from worker.contract.orders import FinishOutcome, WorkspaceMode

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class SessionRunner:
    """Runs one session; never raises for what happens in it.

    Args:
        request: What is asked of it.
        cluster: Where it runs.
        model: The endpoint.
        approver: Who says yes to its calls.
        sinks: Whoever watches.
        secrets: Values that must never be kept.
        session_id: Its id; None makes one.
        next_message: Asks for a person's next message after each turn; None for one turn.
        continued: What an earlier owner left of it (see `resume`); None for a new session.
        make_loop: Takes the arguments of `SessionLoop` and returns the loop; another one has its calls from elsewhere.

    Raises:
        ConfigError: the request goes beyond its ceiling, or its limits cannot be kept.
        TranscriptError: its directory or transcript cannot be made, or the disk is full.
    """

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
        next_message: NextMessage | None = None,
        continued: Continued | None = None,
        make_loop: Callable[..., SessionLoop] = SessionLoop,
    ) -> None:
        granted = within(wants_of(request), request.ceiling, request.principal)
        facts = request.models.of(model.settings.model)
        self.limits = LiveLimits(granted.limits, cut=request.ceiling.cut, facts=facts)
        self._request = replace(request, limits=granted.limits)
        self._tools = granted.tools
        usable = usable_tools(cluster.registry, granted.tools, is_read_only=request.is_read_only)
        self._registry = LiveRegistry((usable if request.task_depth > 0 else without_tasks(usable)).tools())
        request.parameters.check_tools(self._registry.names())
        self._cluster, self._model = cluster, model
        self._approver, self._lasting = OneAtATime(approver), Lasting()
        self._next_message = next_message
        # A session whose owner did not come to write anything begins now.
        self._continued = continued if continued and continued.reading.entries else None
        self._generation = continued.generation if continued else 1
        self._make_loop = make_loop
        self.session_id = session_id or new_session_id()
        self.session_dir = cluster.state_dir / "sessions" / self.session_id
        self.spend, self.clock = Spend(facts), WallClock()
        reserve = Reserve(cluster.state_dir, ENDING_BYTES if continued and continued.is_ending else RESERVE_BYTES)
        reserve.hold()
        self._secrets = [*secrets, *request.box.secrets, *request.parameters.secrets]
        if continued is None:
            make_session_dir(self.session_dir, self._request, model.settings, self._secrets)
        elif self._continued is not None:
            self._count(self._continued)
        self._new_transcript = partial(Transcript.create, secrets=self._secrets, reserve=reserve)
        transcript = self._new_transcript(self.session_dir, self.session_id, self._generation)
        self._taken = TakenStep(self._continued.rebuilt.steps if self._continued else 0)
        self._emit = Emitter(transcript, [self.clock, self._taken, *sinks])
        self._place = self._make_place(continued.generation if continued else 0)
        self.steps: StepRunner | None = None
        """Runs its own calls; None before it runs."""
        self.copies: Copying | None = None
        """Copies its workspace for forks; None before it runs."""
        self._cancelled: asyncio.Event | None = None
        self._abandoned, self._handed_on = asyncio.Event(), asyncio.Event()
        self._abandoned_as = Ending("failed", "")
        self._finish_s = FINISH_S

    def _make_place(self, generation: int) -> SessionPlace:
        return SessionPlace(
            self._request,
            cluster=self._cluster,
            session_id=self.session_id,
            session_dir=self.session_dir,
            generation=generation,
            before=self._continued.rebuilt.placed if self._continued else None,
            tools=self._tools,
            emit=self._emit,
            on_lost=self._was_lost,
            on_cancel=self._was_cancelled,
        )

    async def run(self, cancelled: asyncio.Event) -> SessionResult:
        """Return the session's result once its box is gone and its transcript is whole."""
        self._cancelled = cancelled
        request, continued = self._request, self._continued
        system = self._system(request.limits.steps, request.is_read_only)
        history = continued.rebuilt.history if continued else History(system)
        if continued is None:
            history.add_user(request.prompt, "user")
        # The prompt stands in the first event.
        history.journal = self._emit
        account = Account(self.limits, self.spend, self.clock)
        talk = Talk(
            session=self.session_id,
            registry=self._registry,
            history=history,
            account=account,
            emit=self._emit,
            sync=self._emit.sync,
            home_tools=self._home_tools(system, account),
            waits_for_box=request.box.extras.makes_image or self._place.wants_notes or bool(request.box.extras.mcp),
        )
        loop = self._loop(talk)
        self.steps, self.limits.keep = loop.steps, loop.tell_limits
        self.copies = Copying(self._place, history, loop.steps.running, self._taken)
        conversation = asyncio.create_task(self._converse(loop, system, cancelled), name=f"talk {self.session_id}")
        ending = self._lost_or(await first(conversation, self._abandoned) or self._abandoned_as)
        await decide(ending, self._emit)
        finished = await self._finish(ending, loop.steps)
        ending = self._lost_or(ending)
        if ending.status == "completed":
            request.box.forget(self.session_dir)
        return await self._end(ending, loop, finished)

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
            handed_on=self._handed_on,
            on_servers=None if talk.agent else self._look_at_servers,
            regain=self._place.regain,
        )
        strict = self._model.settings.strict_tools
        return self._make_loop(
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
            reseat=self._place.same if talk.agent else self._place.present,
            waits_for_box=talk.waits_for_box,
            parameters=self._request.parameters,
            context=Context(
                request.context_tokens or self.spend.facts.context_tokens, keeper(self.session_dir / "spill")
            ),
        )

    def _home_tools(self, system: str, account: Account) -> Mapping[str, HomeTool]:
        if self._request.task_depth < 1:
            return HOME_TOOLS
        lent = Lent(
            session_dir=self.session_dir,
            started=self._started(system),
            system=self._system,
            make=self._loop,
            transcript=self._new_transcript,
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
                profile=request.profile,
                notes=self._place.notes,
                added=request.parameters.system,
            )
        )

    def abandon(self, ending: Ending, *, finish_s: float) -> None:
        """Let `run` return soon, whatever it waits for; the node may take `finish_s` to say what became of the work."""
        if self._handed_on.is_set():
            return
        self._abandoned_as, self._finish_s = ending, finish_s
        if ending.is_lost:
            self._handed_on.set()
        self._abandoned.set()

    def _lost_or(self, ending: Ending) -> Ending:
        """Return that the session is another owner's where it is so by now: how it ends is for that one to say."""
        return self._abandoned_as if self._handed_on.is_set() and not self._place.is_let_go else ending

    def _was_lost(self) -> None:
        self.abandon(Ending("failed", "taken over: another coordinator has the session", is_lost=True), finish_s=0.0)

    def _was_cancelled(self) -> None:
        """Another process asked for it, as the one who started it could have."""
        if self._cancelled is not None:
            self._cancelled.set()

    def _count(self, continued: Continued) -> None:
        """Begin with what the session has used, and with its limits as they were changed last."""
        rebuilt = continued.rebuilt
        self.spend.steps, self.spend.calls = rebuilt.steps, rebuilt.calls
        for usage in rebuilt.usages:
            self.spend.add(usage)
        for child in rebuilt.children:
            self.spend.add_child(child.usage, self.spend.facts.cost_usd(child.usage), child.calls)
        self.clock = WallClock(used_s=rebuilt.elapsed_s)
        if rebuilt.limits is not None:
            self.limits.change(rebuilt.limits)
        if continued.by != TAKEOVER:
            self._grant()

    def _grant(self) -> None:
        """Give the session another turn's replies: somebody wants it to go on."""
        steps = self.spend.steps + self._request.limits.steps
        self.limits.change(self.limits.now.model_copy(update={"steps": steps}))

    async def _converse(self, loop: SessionLoop, system: str, cancelled: asyncio.Event) -> Ending:
        continued = self._continued
        answers = None
        if continued is not None:
            strict = self._model.settings.strict_tools
            answers = OpenAnswers(self._cluster, loop.steps, self._registry, continued.rebuilt, strict)
        conversation = Conversation(loop, self._emit, self._grant, self._next_message, continued, answers)
        seat = asyncio.create_task(self._take_seat(loop.history), name=f"seat {self.session_id}")
        try:
            self._emit(
                resumed(continued, session_id=self.session_id, settings=self._model.settings)
                if continued
                else self._started(system)
            )
            return await conversation.run(seat, cancelled)
        except TranscriptError as exc:
            return Ending("failed", f"storage: {exc}")
        except Exception as exc:
            # A bug of ours ends this session, with its box and place given back, and no other one.
            log.exception("a session broke", extra={"session_id": self.session_id})
            return Ending("failed", f"internal: {type(exc).__name__}: {exc}")
        finally:
            await end(seat)

    async def _take_seat(self, history: History) -> Seat:
        """Return the session's seat; the repository's words are in the system message then."""
        seat = await self._place.take()
        self._bring_mcp()
        if self._place.notes is not None:
            system = self._system(self._request.limits.steps, self._request.is_read_only)
            self._emit(SystemWritten(system=system))
            history.set_system(system)
        return seat

    async def _look_at_servers(self, digest: str, seat: Seat) -> None:
        """Show the model other tools from the next step on where a server has others now."""
        if await self._place.look_at_servers(digest):
            self._bring_mcp()

    def _bring_mcp(self) -> None:
        listing = self._place.mcp
        if listing is None:
            return
        for note in listing.notes:
            self._emit(Notice(level="warning", text=note))
        tools = Registry(
            mcp_tool(
                spec.name,
                spec.description,
                spec.parameters,
                reads=spec.reads,
                is_outside=spec.is_outside,
                timeout_s=spec.timeout_s,
            )
            for spec in listing.tools
        )
        self._registry.bring(usable_tools(tools, self._tools, is_read_only=self._request.is_read_only).tools())

    def _started(self, system: str) -> SessionStarted:
        return started(
            self._request,
            session_id=self.session_id,
            generation=self._generation,
            settings=self._model.settings,
            system=system,
        )

    async def _finish(self, ending: Ending, steps: StepRunner) -> FinishOutcome:
        """End the box, unless it is another coordinator's now; within the bounded time of an abandoned session."""
        if ending.is_lost:
            self._cluster.turns.let_go(self.session_id)
            return FinishOutcome(session=self.session_id)
        leaving = self._place.leave(ending, steps, is_whole=self._emit.is_whole)
        try:
            finished = await self._unless_abandoned(asyncio.create_task(leaving))
        except LostSession:
            finished = None
        if finished is None:
            error = "The session was broken off before its node said what became of the workspace."
            return FinishOutcome(session=self.session_id, error=error)
        return finished

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

    async def _end(self, ending: Ending, loop: SessionLoop, finished: FinishOutcome) -> SessionResult:
        notes = notes_of(finished)
        patch = read_patch(finished.patch_path, notes)
        last = ended(ending, loop, cost_usd=loop.spend.shown_usd, patch_path=finished.patch_path)
        try:
            if ending.is_lost:
                # Who has lost a session writes nothing more.
                self._emit.show(last)
            else:
                await self._emit.last([*(Notice(level="warning", text=note) for note in notes), last])
            self._emit.transcript.close()
        except TranscriptError as exc:
            notes.append(str(exc))
            if last.status == "completed":
                last = last.model_copy(update={"status": "failed", "stop_reason": f"storage: {exc}"})
        return result_of(
            last,
            self._request,
            finished,
            session_id=self.session_id,
            transcript=str(self._emit.transcript.path),
            patch=patch,
            notes=notes,
        )


def wants_of(request: SessionRequest) -> Wants:
    """Return what a ceiling is asked about."""
    makes_image = request.box.extras.makes_image
    return Wants(request.workspace.policy, request.image, request.limits, request.profile, makes_image=makes_image)
