"""One session that waits or runs in this process: sessions → **held** → runner, and what is said to it meanwhile."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient
from coordinator.service.caller_loop import CallerLoop
from coordinator.service.entries import Entry
from coordinator.service.messages import Message, Messages
from coordinator.service.posted import Caller, restored
from coordinator.service.principals import Principal
from coordinator.service.records import write_record
from coordinator.service.refusals import Code, Refused
from coordinator.session.approvals import Approver, Elsewhere, Never
from coordinator.session.catching_up import TAKEOVER
from coordinator.session.events import EventSink
from coordinator.session.limits import Limits
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.request import SessionRequest
from coordinator.session.resume import Resumable, continuing, resume
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import TurnEnded
from coordinator.session.step import StepRunner
from coordinator.session.takeover import Adopted

BY_MESSAGE = "a message"


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
        """Whether it does nothing until a person says yes or something else, or its caller posts calls or ends it."""
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
        return self.request.limits if self.runner is None else self.runner.limits.now

    def limit(self, limits: Limits) -> None:
        """Put other limits in place, cut to the principal's ceiling.

        Raises:
            ConfigError: they cannot be kept.
        """
        if self.runner is not None:
            self.runner.limits.change(limits)
        self.request = replace(self.request, limits=self.request.ceiling.cut(limits))

    def cancel(self) -> None:
        """End the session once each of its calls has its answer."""
        self.cancelled.set()
        self._go_on()

    @property
    def steps(self) -> StepRunner | None:
        """What runs its calls; None before it has begun here."""
        return None if self.runner is None else self.runner.steps

    def leave(self) -> None:
        """Let go of the session where it is, for another coordinator to go on with."""
        if self.runner is not None:
            self.runner.abandon(Ending("failed", "the server ended", is_lost=True), finish_s=0.0)

    async def run(self, shared: Shared) -> None:
        """Run the session to its end.

        Raises:
            SandhogError: it cannot be begun, or another process has it.
        """
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
                    sinks=[*self._sinks, *shared.sinks_of(self.entry)],
                    message=self.messages.take(),
                    secrets=shared.hidden,
                    next_message=self._next_message,
                    by=BY_MESSAGE,
                    make_loop=self._make_loop,
                )
        await self.runner.run(self.cancelled)

    def _adopted(self, adopted: Adopted, shared: Shared) -> SessionRunner:
        return continuing(
            adopted.session_id,
            self.request,
            generation=adopted.generation,
            cluster=shared.cluster,
            model=self.model,
            approver=self._approver,
            sinks=[*self._sinks, *shared.sinks_of(self.entry)],
            secrets=shared.hidden,
            next_message=self._next_message,
            by=TAKEOVER,
            make_loop=self._make_loop,
        )

    def _new(self, shared: Shared) -> SessionRunner:
        entry = self.entry
        runner = SessionRunner(
            self.request,
            cluster=shared.cluster,
            model=self.model,
            approver=self._approver,
            sinks=[*self._sinks, *shared.sinks_of(self.entry)],
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

    @property
    def _sinks(self) -> list[Callable[..., None]]:
        return [self.entry] if self.caller is None else [self.caller, self.entry]

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
