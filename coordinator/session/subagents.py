"""Sub-agents: Task → **a session of its own in the same box** → its final words as the call's answer.

A sub-agent has its own id, history, transcript, working directory and read metadata; box, place, lanes, policy and the
human who is asked are those of the session above it. It ends with its call.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from pydantic import JsonValue
from redis.exceptions import RedisError

from coordinator.cluster.patience import patiently
from coordinator.cluster.seat import Above, ChildSession, Seat
from coordinator.ending import end, set_with
from coordinator.endpoint.fragments import mend
from coordinator.endpoint.reply import Usage
from coordinator.errors import RedisLost, TranscriptError
from coordinator.session.call_events import CallFinished
from coordinator.session.ceilings import usable_tools
from coordinator.session.closing import ended
from coordinator.session.events import ChildEvent, Event, innermost
from coordinator.session.history import History
from coordinator.session.home_tools import HOME_TOOLS, HomeCall
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.session_events import ChildEnded, ChildStarted
from coordinator.session.spend import WallClock
from coordinator.session.step_events import ModelReplied, TextDelta, TokensSpent
from coordinator.session.talk import Account, Lent, Talk
from coordinator.session.transcript import CHILDREN_DIR, Transcript
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.registry import Registry
from tools.task import TASK_TOOL, TaskParameters
from worker.contract import keys

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Sub-agents of one session that run at the same time; others wait."""
GENERATION = 1
"""Of every sub-agent: it is never gone on with."""
MOST_STEPS = 50
"""Replies of one sub-agent, where the session above it has as many left."""

RULES = (
    "You are a sub-agent. Your task comes from the agent that leads this session, which sees nothing of what you do "
    "but your last message; nobody answers questions. End with one message that holds all it needs: findings with "
    "paths and line numbers, what you changed, what is left open."
)


class SubAgents:
    """Starts the sub-agents of one conversation.

    Args:
        lent: What they use of the session.
        registry: The conversation's own tools; its sub-agents have no others.
        account: The conversation's own; what its sub-agents use counts there too.
        depth: How deep sub-agents may go from here; at least 1.
    """

    def __init__(self, lent: Lent, registry: Registry, account: Account, depth: int) -> None:
        self._lent = lent
        self._registry = registry
        self._account = account
        self._depth = depth
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, call: HomeCall) -> ToolResult:
        """Return the final words of a new sub-agent, or why there are none.

        Raises:
            ToolFailure: it could not begin.
        """
        async with self._slots:
            if call.cancelled.is_set():
                raise ToolFailure(ErrorCode.CANCELLED, "It was cancelled before the sub-agent began.")
            seat = await self._sit(call)
            account = self._account.of_child(MOST_STEPS)
            with self._transcript(seat) as transcript:
                record = _Record(call, seat, transcript, self._account, account.clock)
                return await self._run(call, self._talk(call, record, account), record)

    async def _run(self, call: HomeCall, talk: Talk, record: "_Record") -> ToolResult:
        loop = self._lent.make(talk)
        record.begins(self._lent, talk)
        ending = await _converse(loop, record, call.cancelled)
        await self._forget(loop, record.seat)
        record.ends(ending, loop)
        return _answer(record, ending, loop)

    async def _sit(self, call: HomeCall) -> Seat:
        above, parameters = call.seat, _parameters(call)
        session = f"{above.session}{keys.CHILD_MARK}{above.generation}-{call.step}-{call.planned.index}"
        try:
            # Its place is its own, so that its generation may be said again where the answer is lost.
            begin = partial(self._lent.store.own_session, session, GENERATION, "", is_adoptable=False)
            await patiently(begin, call.cancelled)
        except RedisLost as exc:
            raise ToolFailure(ErrorCode.EXECUTION_ERROR, f"The sub-agent could not begin: {exc}") from exc
        waiting = Above(above.session, above.generation, call.step)
        return replace(
            above,
            child=ChildSession(session, GENERATION, (*(above.child.above if above.child else ()), waiting)),
            is_read_only=above.is_read_only or parameters.profile == "explore",
        )

    def _transcript(self, seat: Seat) -> Transcript:
        directory = self._lent.session_dir / CHILDREN_DIR / _short(seat)
        try:
            return self._lent.transcript(directory, seat.session, seat.generation)
        except TranscriptError as exc:
            raise ToolFailure(ErrorCode.EXECUTION_ERROR, f"The sub-agent could not begin: {exc}") from exc

    def _talk(self, call: HomeCall, record: "_Record", account: Account) -> Talk:
        seat, parameters = record.seat, _parameters(call)
        history = History(f"{self._lent.system(account.limits.now.steps, seat.is_read_only)}\n{RULES}")
        history.add_user(parameters.prompt, "user")
        # The prompt stands in the first event.
        history.journal = record
        # As it is now: the tools of MCP servers come and go.
        registry = self._registry if self._depth > 1 else without_tasks(self._registry)
        registry = usable_tools(registry, None, is_read_only=seat.is_read_only)
        home_tools = dict(HOME_TOOLS)
        if self._depth > 1:
            home_tools[TASK_TOOL] = SubAgents(self._lent, registry, account, self._depth - 1).run
        return Talk(
            session=seat.session,
            registry=registry,
            history=history,
            account=account,
            emit=record,
            sync=record.transcript.sync_aside,
            home_tools=home_tools,
            agent=parameters.description,
        )

    async def _forget(self, loop: SessionLoop, seat: Seat) -> None:
        """Leave nothing of it in Redis: none of its calls starts from now on."""
        store, steps = self._lent.store, loop.steps
        try:
            await store.close_session(seat.session)
            await store.withdraw_grants(seat.session, steps.granted)
            await store.forget_calls(steps.keys)
        except RedisError as exc:
            log.info("a sub-agent is left to expire", extra={"session_id": seat.session, "error": str(exc)})


def without_tasks(registry: Registry) -> Registry:
    """Return the registry for a conversation that starts no sub-agents."""
    return Registry(tool for tool in registry.tools() if tool.name != TASK_TOOL)


class _Record:
    """Takes a sub-agent's events: into its transcript, to those who watch, and into the account above."""

    def __init__(self, call: HomeCall, seat: Seat, transcript: Transcript, above: Account, clock: WallClock) -> None:
        self.seat = seat
        self.transcript = transcript
        self.over = asyncio.Event()
        """Set when what it used was the last that the account above had."""
        self.last_words = ""
        """What its model said last."""
        self.above = above
        self._clock = clock
        self._call = call
        self._path = f"{CHILDREN_DIR}/{_short(seat)}/{transcript.path.name}"
        self._is_torn = False

    def __call__(self, event: Event) -> None:
        """Take an event.

        Raises:
            TranscriptError: it cannot be kept; said once, for the sub-agent ends by it.
        """
        if isinstance(event, ModelReplied):
            self.last_words = event.text or self.last_words
        self._clock(event)
        self._count(event)
        if not self._is_torn:
            try:
                self.transcript(event)
            except TranscriptError:
                self._is_torn = True
                raise
        if not isinstance(event, TextDelta):
            self._call.emit(
                ChildEvent(
                    step=self._call.step,
                    index=self._call.planned.index,
                    child=self.seat.session,
                    description=_parameters(self._call).description,
                    event=event,
                )
            )

    def _count(self, event: Event) -> None:
        """Put what an event tells of, also one of a sub-agent's sub-agent, on the account above."""
        _, event = innermost(event)
        match event:
            case ModelReplied():
                usage = event.usage or Usage()
                self.above.spend.add_child(usage, self.above.spend.facts.cost_usd(usage))
            case TokensSpent(usage=usage):
                self.above.spend.add_child(usage, self.above.spend.facts.cost_usd(usage))
            case CallFinished():
                self.above.spend.add_child(Usage(), 0.0, calls=1)
            case _:
                return
        if self.above.reached:
            self.over.set()

    def begins(self, lent: Lent, talk: Talk) -> None:
        """Say that it begins, here and above."""
        parameters = _parameters(self._call)
        self._call.emit(
            ChildStarted(
                step=self._call.step,
                index=self._call.planned.index,
                child=talk.session,
                description=parameters.description,
                profile=parameters.profile,
                transcript=self._path,
            )
        )
        own = {
            "session_id": talk.session,
            "prompt": parameters.prompt,
            "max_steps": talk.account.limits.now.steps,
            "limits": talk.account.limits.now,
            "system": talk.history.messages[0]["content"],
            "generation": self.seat.generation,
        }
        self(lent.started.model_copy(update=own))

    def ends(self, ending: Ending, loop: SessionLoop) -> None:
        """Say how it ended, here and above."""
        spend = loop.spend
        try:
            self(ended(ending, loop))
            self.transcript.sync()
        except TranscriptError as exc:
            log.warning("a sub-agent's end was not kept", extra={"session_id": self.seat.session, "error": str(exc)})
        self._call.emit(
            ChildEnded(
                step=self._call.step,
                index=self._call.planned.index,
                child=self.seat.session,
                description=_parameters(self._call).description,
                status=ending.status,
                stop_reason=ending.stop_reason,
                steps=spend.steps,
                calls=spend.calls,
                usage=spend.usage,
                transcript=self._path,
            )
        )


async def _converse(loop: SessionLoop, record: _Record, cancelled: asyncio.Event) -> Ending:
    """Return how a sub-agent ended; never raises for what happens in it."""
    session = record.seat.session
    stop = asyncio.Event()
    seated = asyncio.create_task(_at_once(record.seat), name=f"seat {session}")
    stopping = asyncio.create_task(set_with(stop, cancelled, record.over), name=f"stop {session}")
    try:
        ending = await loop.run(seated, stop)
    except TranscriptError as exc:
        return Ending("failed", f"storage: {exc}")
    except Exception as exc:
        # A bug of ours ends this sub-agent, and not the session above it.
        log.exception("a sub-agent broke", extra={"session_id": session})
        return Ending("failed", f"internal: {type(exc).__name__}: {exc}")
    finally:
        await end(seated, stopping)
    if ending.status == "cancelled" and not cancelled.is_set():
        return Ending("stopped", record.above.reached or "limit: the session's own", ending.text)
    return ending


async def _at_once(seat: Seat) -> Seat:
    return seat


def _answer(record: _Record, ending: Ending, loop: SessionLoop) -> ToolResult:
    """Return what the model above is told."""
    spend, reason = loop.spend, mend(ending.stop_reason)
    data: dict[str, JsonValue] = {
        "status": ending.status,
        "stop_reason": reason,
        "steps": spend.steps,
        "calls": spend.calls,
        "tokens": spend.usage.total_tokens,
        "agent": record.seat.session,
    }
    text = mend(ending.text or record.last_words)
    if ending.status == "completed":
        return ToolResult(status="success", text=text, data=data)
    words = (
        f"The sub-agent {'was ' if ending.status == 'stopped' else ''}{ending.status} before it was done ({reason})."
    )
    match ending.status:
        case "stopped" if text:
            return ToolResult(status="partial", text=f"[{words} Its last words follow.]\n{text}", data=data)
        case "stopped":
            code = ErrorCode.LIMIT_REACHED
        case "cancelled":
            code, words = ErrorCode.CANCELLED, "The sub-agent was cancelled."
        case _:
            code = ErrorCode.EXECUTION_ERROR
    return ToolResult.failure(code, f"{words} What it did until then stands.", text=text, data=data)


def _parameters(call: HomeCall) -> TaskParameters:
    parameters = call.planned.parameters
    assert isinstance(parameters, TaskParameters)
    return parameters


def _short(seat: Seat) -> str:
    """Return a sub-agent's name without that of the session that has the box."""
    return seat.session.removeprefix(seat.box.session + keys.CHILD_MARK)
