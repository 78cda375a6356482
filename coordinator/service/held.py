"""One session that waits or runs in this process: sessions → **held** → runner, and what is said to it meanwhile."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Wish
from coordinator.ending import end
from coordinator.endpoint.model import ModelClient
from coordinator.errors import TranscriptError
from coordinator.service.caller_loop import CallerLoop
from coordinator.service.entries import Entry
from coordinator.service.messages import Message, Messages
from coordinator.service.posted import Caller, restored
from coordinator.service.principals import Principal
from coordinator.service.records import write_record
from coordinator.service.refusals import Code, Refused
from coordinator.session.approvals import Approver, Elsewhere, Never
from coordinator.session.copying import Copying
from coordinator.session.events import Event, EventSink
from coordinator.session.limits import Limits, LiveLimits
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.request import SessionRequest
from coordinator.session.resume import Resumable, continuing, resume
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TAKEOVER, SessionResumed, SessionStarted, TurnEnded
from coordinator.session.step import StepRunner
from coordinator.session.takeover import Adopted

BY_MESSAGE = "a message"
BEGINS_S = 30.0
"""How long whoever asks about a session that was taken over waits until it goes on."""


@dataclass(frozen=True)
class Shared:
    """What all sessions of a process run on."""

    cluster: Cluster
    hidden: tuple[str, ...]
    """Values that must never reach a transcript."""
    watchers: Sequence[Callable[[Entry], EventSink]] = ()
    """Each gives a session that begins or goes on here a sink of its own."""

    def sinks_of(self, entry: Entry) -> list[EventSink]:
        """Return the watchers' sinks for a session."""
        return [watch(entry) for watch in self.watchers]


@dataclass(eq=False)
class Held:
    """A session that waits or runs here."""

    entry: Entry
    request: SessionRequest
    model: ModelClient
    principal: Principal
    found: Resumable | Adopted | None = None
    """What an earlier owner left, adopted where it is ours already; None for a session that begins."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    runner: SessionRunner | None = None
    task: "asyncio.Task[None] | None" = None
    caller: Caller | None = None
    """Of a session without a model."""
    messages: Messages = field(init=False)
    """What was said to it and it has not had time for."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its first event here is kept: whoever asks about its open calls is told of them from then on."""
    is_held_up: bool = False
    """It was taken over and cannot begin yet: it is tried again, see `adopted`."""
    left_wishes: list[Wish] = field(default_factory=list)
    """What was left to its next owner, should this one be gone before it is done."""
    _limits_said: dict[str, Any] = field(default_factory=dict)
    """Limits that were changed before it began here, and that are not in the request."""
    _said: asyncio.Event = field(default_factory=asyncio.Event)
    _is_finished: bool = False
    _takes_messages: bool = True

    def __post_init__(self) -> None:
        self.messages = Messages(self.entry.directory)
        if self.entry.record.loop == "none":
            self.caller = Caller() if self.found is None else restored(self.found.reading.entries)

    @property
    def stays_open(self) -> bool:
        """Whether it waits for a further message once the model has answered."""
        wanted = self.entry.record.wanted
        return wanted is not None and wanted.stay_open

    @property
    def waits_for_somebody(self) -> bool:
        """Whether it does nothing until a person says yes or something else, or its caller posts calls or ends it.

        Or until there is room on the disk, or what else it is held up by has gone.
        """
        if self.is_held_up:
            return True
        if self.cancelled.is_set():
            return False
        if self.entry.facts.status in ("waiting", "idle"):
            return True
        caller = self.caller
        return caller is not None and caller.farewell is None and (caller.last is None or caller.last.done.is_set())

    def say(self, text: str) -> Message:
        """Hand a person's message on; the model gets it once it has answered what was said before.

        Returns:
            The message, to be kept before whoever said it is told that it was accepted.

        Raises:
            Refused: it takes none.
        """
        if self.caller is not None:
            raise Refused(Code.CONFLICT, "A session without a model takes no messages.", "POST …/tool_calls.")
        if self.cancelled.is_set() or self._is_finished or not self._takes_messages:
            words = f"Session {self.entry.session_id} is just ending."
            raise Refused(Code.CONFLICT, words, "Ask again once it has ended.", retry_after_s=2)
        message = self.messages.add(text)
        self._go_on()
        return message

    def finish(self, text: str) -> None:
        """Let the session complete, once it has heard what was said to it and does nothing.

        Raises:
            Refused: a step is under way.
        """
        if self.caller is not None:
            self.caller.end(text)
        self._is_finished = True
        self._go_on()

    @property
    def limits(self) -> Limits:
        """What it may use now."""
        if self.runner is not None and self.has_begun.is_set():
            return self.runner.limits.now
        before = self.found.rebuilt.limits if isinstance(self.found, Adopted) else None
        return (before or self.request.limits).model_copy(update=self._limits_said)

    def limit(self, limits: Limits) -> None:
        """Put other limits in place, cut to the principal's ceiling.

        Raises:
            ConfigError: they cannot be kept.
            Refused: it is just ending, or the volume does not take them.
        """
        if self.runner is not None and self.has_begun.is_set():
            if self.entry.facts.has_ended:
                # Its last event is kept: none may come behind that.
                words = f"Session {self.entry.session_id} is just ending."
                raise Refused(Code.CONFLICT, words, "Ask again once it has ended.", retry_after_s=2)
            self.runner.limits.change(limits)
            try:
                self.runner.limits.keep()
            except TranscriptError as exc:
                raise Refused(Code.UNAVAILABLE, str(exc)) from exc
            return
        facts, before = self.request.models.of(self.model.settings.model), self.limits.model_dump()
        granted = LiveLimits(limits, cut=self.request.ceiling.cut, facts=facts).now.model_dump()
        said = {name: value for name, value in granted.items() if value != before[name]}
        # The runner may be in the making, and have the request as it was.
        self._limits_said.update(said)
        if not isinstance(self.found, Adopted):
            self.request = replace(self.request, limits=self.request.limits.model_copy(update=said))

    def cancel(self) -> None:
        """End the session once each of its calls has its answer."""
        self.cancelled.set()
        self._go_on()

    @property
    def steps(self) -> StepRunner | None:
        """What runs its calls; None before it has begun here."""
        return None if self.runner is None else self.runner.steps

    @property
    def copies(self) -> Copying | None:
        """What copies its workspace; None before it has begun here."""
        return None if self.runner is None else self.runner.copies

    async def until_begun(self) -> None:
        """Return once a session that was taken over goes on here, or half a minute is over.

        To whoever asks about its calls or its workspace it was at work all the time.
        """
        if isinstance(self.found, Adopted):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.has_begun.wait(), BEGINS_S)

    def leave(self) -> None:
        """Let go of the session where it is, for another coordinator to go on with."""
        if self.runner is not None:
            self.runner.abandon(Ending("failed", "the server ended", is_lost=True), finish_s=0.0)

    async def run(self, shared: Shared) -> None:
        """Run the session to its end.

        Raises:
            SandhogError: it cannot be begun, or another process has it.
        """
        if not isinstance(self.found, Adopted):
            # They are in the request.
            self._limits_said.clear()
        match self.found:
            case None:
                self.runner = await asyncio.to_thread(self._new, shared)
            case Adopted():
                self.runner = await asyncio.to_thread(self._adopted, self.found, shared)
            case _:
                self.runner = await resume(
                    self.found,
                    self.request,
                    cluster=shared.cluster,
                    model=self.model,
                    approver=self._approver,
                    sinks=self._sinks(shared),
                    message=self.messages.take(),
                    secrets=shared.hidden,
                    next_message=self._next_message,
                    by=BY_MESSAGE,
                    make_loop=self._make_loop,
                )
        self.is_held_up = False
        left = asyncio.create_task(self._end_left_step(), name=f"left step of {self.entry.session_id}")
        try:
            await self.runner.run(self.cancelled)
        finally:
            await end(left)

    async def _end_left_step(self) -> None:
        """End what an earlier owner left of a caller's step as soon as the caller wants it no more."""
        step = self.caller.last if self.caller is not None and self.caller.is_catching_up else None
        if step is not None:
            await step.cancelled.wait()
            await self.has_begun.wait()
            if self.steps is not None:
                await self.steps.cancel(step.number, None)

    def _begins(self, event: Event) -> None:
        """Take in that it goes on from now on, with what was said of its limits meanwhile."""
        if isinstance(event, SessionStarted | SessionResumed) and self.runner is not None:
            self.has_begun.set()
            if self._limits_said:
                now = self.runner.limits.now
                self.runner.limits.change(now.model_copy(update=self._limits_said))
                self.runner.limits.keep()

    def _adopted(self, adopted: Adopted, shared: Shared) -> SessionRunner:
        return continuing(
            adopted.session_id,
            self.request,
            generation=adopted.generation,
            cluster=shared.cluster,
            model=self.model,
            approver=self._approver,
            sinks=self._sinks(shared),
            secrets=shared.hidden,
            next_message=self._next_message,
            by=TAKEOVER,
            is_ending=self.cancelled.is_set(),
            make_loop=self._make_loop,
        )

    def _new(self, shared: Shared) -> SessionRunner:
        entry = self.entry
        runner = SessionRunner(
            self.request,
            cluster=shared.cluster,
            model=self.model,
            approver=self._approver,
            sinks=self._sinks(shared),
            secrets=shared.hidden,
            session_id=entry.session_id,
            next_message=self._next_message,
            make_loop=self._make_loop,
        )
        # The values of variables were kept for a session that waits; one that has begun has them elsewhere.
        entry.record = entry.record.without_secrets()
        write_record(entry.directory, entry.record)
        return runner

    @property
    def _approver(self) -> Approver:
        wanted = self.entry.record.wanted
        return Never() if wanted is not None and wanted.approve == "never" else Elsewhere()

    def _sinks(self, shared: Shared) -> list[EventSink]:
        first: list[EventSink] = [] if self.caller is None else [self.caller]
        return [*first, self.entry, *shared.sinks_of(self.entry), self._begins]

    @property
    def _make_loop(self) -> Callable[..., SessionLoop]:
        return SessionLoop if self.caller is None else partial(CallerLoop, caller=self.caller)

    def _go_on(self) -> None:
        """Wait for nothing more: there is something to do, or the session ends."""
        if self.entry.facts.state == "idle":
            self.entry.facts.state = "running"
        self._said.set()

    async def _next_message(self, turn: TurnEnded) -> str | None:
        while not self.cancelled.is_set():
            self._said.clear()
            if self.messages:
                return self.messages.take()
            if self._is_finished or not self.stays_open:
                break
            self.entry.facts.state = "idle"
            self.entry.wake()
            await self._said.wait()
        self._takes_messages = False
        return None
