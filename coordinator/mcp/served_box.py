"""A box whose tools a client of ours calls one by one, without a model loop here: server → **served_box** → step.

The client decides what runs and when. Calls that only read run beside all others; the others run one after another, in
the order in which they came. The box begins with the first client and ends with `close`.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue
from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.patience import patiently
from coordinator.cluster.seat import Seat
from coordinator.cluster.turns import PlaceWanted
from coordinator.ending import end, set_with
from coordinator.endpoint.reply import RawCall
from coordinator.errors import LostSession, NoBox, RedisLost, TranscriptError
from coordinator.session.approvals import Approvals, Approver, Lasting
from coordinator.session.ceilings import usable_tools
from coordinator.session.events import Event, EventSink
from coordinator.session.plan import PlannedCall, plan
from coordinator.session.request import SessionRequest, new_session_id
from coordinator.session.session_events import Notice, SessionEnded, SessionStarted
from coordinator.session.step import StepRunner
from coordinator.session.transcript import Transcript
from tools.registry import Registry
from tools.rules import rules_to_text
from worker.contract import keys
from worker.contract.orders import BoxOrder, CallKey, FinishOutcome, NodeLife

log = logging.getLogger(__name__)

OPEN_REDIS_S = 60.0
GENERATION = 1
"""Of every such session: nobody goes on with it."""


@dataclass(frozen=True)
class Answer:
    """What a call came to, as the model of a session would get it."""

    status: str
    """success, partial or error."""
    text: str
    """For the model."""
    error_code: str | None
    error_message: str
    data: dict[str, JsonValue]

    @classmethod
    def read(cls, content: str) -> "Answer":
        """Return the answer in the content of a `tool` message."""
        answer: dict[str, Any] = json.loads(content)
        error = answer.get("error") or {}
        return cls(answer["status"], answer["text"], error.get("code"), error.get("message") or "", answer["data"])


class _Steps:
    """Numbers calls. Those that run at the same time are of one step: a later step would keep them from starting."""

    def __init__(self) -> None:
        self.step = 0
        self._index = -1
        self._running = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[tuple[int, int]]:
        """Yield a call's step and its place in it."""
        if not self._running:
            self.step, self._index = self.step + 1, -1
        self._index += 1
        self._running += 1
        try:
            yield self.step, self._index
        finally:
            self._running -= 1


class ServedBox:
    """One box, with the tools that run in it or on its node.

    Args:
        request: What the box is to be; its prompt and limits mean nothing here.
        cluster: Must cancel calls alone, see `open_cluster`.
        approver: Answers where the policy asks.
        sinks: Watch what happens.

    Raises:
        TranscriptError: the session's directory cannot be made.
    """

    def __init__(
        self, request: SessionRequest, *, cluster: Cluster, approver: Approver, sinks: Iterable[EventSink] = ()
    ) -> None:
        self.session_id = new_session_id()
        self._request = request
        self._cluster = cluster
        usable = usable_tools(cluster.registry, request.ceiling.tools, is_read_only=request.is_read_only)
        self.registry = Registry(tool for tool in usable.tools() if tool.runs_on != "coordinator")
        self._dir = cluster.state_dir / "sessions" / self.session_id
        self._transcript = self._begin()
        self._sinks = list(sinks)
        self._approver, self._lasting = approver, Lasting()
        self._node: NodeLife | None = None
        self._seat: asyncio.Task[Seat] | None = None
        self._steps = _Steps()
        self._calls = 0
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Answer]] = set()
        self._keys: list[CallKey] = []
        self._granted: set[str] = set()
        self._closing = asyncio.Event()
        self._emit(self._started())

    def prepare(self) -> None:
        """Have the box made ready; the first call waits for it."""
        if self._seat is None or (self._seat.done() and self._seat.exception() is not None):
            self._seat = asyncio.create_task(self._sit(), name=f"seat {self.session_id}")

    def start(self, tool: str, arguments: Mapping[str, Any], cancelled: asyncio.Event) -> "asyncio.Task[Answer]":
        """Begin a call and return the task of its answer, which never fails for what the call does.

        Args:
            tool: The tool's name.
            arguments: As the client sent them.
            cancelled: Ends this call, and no other.
        """
        task = asyncio.create_task(self._call(tool, arguments, cancelled), name=f"call {tool}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self, *, why: str) -> FinishOutcome:
        """End all calls and the box; return what its workspace became. Idempotent."""
        self._closing.set()
        if self._running:
            await asyncio.wait(set(self._running))
        finished = FinishOutcome(session=self.session_id)
        if self._seat is not None:
            await end(self._seat)
        placement = self._cluster.placement
        if self._node is not None:
            finished = await placement.finish(self._box, self._node, apply=self._request.apply)
        node = self._node.node if self._node else None
        if await placement.withdraw(self.session_id, node, away_s=keys.OUTAGE_S):
            try:
                await self._cluster.store.withdraw_grants(self.session_id, self._granted)
                await self._cluster.store.forget_calls(self._keys)
            except RedisError as exc:
                log.info("claims are left to expire", extra={"session_id": self.session_id, "error": str(exc)})
        else:
            give = partial(placement.give_up, self.session_id, node, GENERATION)
            self._cluster.ownership.owe(self.session_id, give)
        self._request.box.forget(self._dir)
        self._end(why, finished)
        return finished

    async def _call(self, tool: str, arguments: Mapping[str, Any], cancelled: asyncio.Event) -> Answer:
        stop = asyncio.Event()
        stopping = asyncio.create_task(set_with(stop, cancelled, self._closing))
        try:
            with self._steps.place() as (step, index):
                raw = RawCall(index=index, id=f"{step}.{index}", name=tool, arguments=dict(arguments))
                (call,) = plan([raw], [f"{step}.{index}"], self.registry)
                if call.is_concurrency_safe or call.refusal is not None:
                    return await self._answer(step, call, stop)
                async with self._turn:
                    return await self._answer(step, call, stop)
        finally:
            await end(stopping)

    async def _answer(self, step: int, call: PlannedCall, stop: asyncio.Event) -> Answer:
        self._calls += 1
        request = self._request
        steps = StepRunner(
            self._cluster.executor,
            self._cluster.store,
            Approvals(self._cluster.requests, self._approver, self._emit, request.approval_s, self._lasting),
            self._emit,
            registry=self.registry,
            keys=self._keys,
            granted=self._granted,
            budgets=request.budgets,
            regain=self._regain,
        )
        try:
            if call.refusal is not None:
                (content,) = steps.refuse(step, [call])
                return Answer.read(content)
            seat = await self._seated(stop)
            if seat is None:
                (content,) = steps.refuse(step, [call], "it was cancelled before the sandbox stood")
            else:
                (content,) = await steps.run(step, [call], seat, stop)
            return Answer.read(content)
        except NoBox as exc:
            return _failed("BOX_LOST", f"There is no sandbox: {exc}")
        except (LostSession, RedisLost, TranscriptError) as exc:
            return _failed("EXECUTION_ERROR", str(exc))

    async def _seated(self, stop: asyncio.Event) -> Seat | None:
        """Return the seat once the box stands; None when stopped before.

        Raises:
            NoBox: it cannot be had; the next call tries again.
        """
        self.prepare()
        assert self._seat is not None
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({self._seat, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        return self._seat.result() if self._seat.done() else None

    async def _sit(self) -> Seat:
        store, placement = self._cluster.store, self._cluster.placement
        try:
            # Not opened: where the box cannot be had the next call comes by here again, in the same generation.
            begin = partial(store.own_session, self.session_id, GENERATION, "", is_adoptable=False)
            await patiently(begin, self._closing, OPEN_REDIS_S)
        except RedisLost as exc:
            raise NoBox(f"{exc} Start it, or correct SANDHOG_REDIS_URL.") from exc
        self._node = self._node or await placement.place(self.session_id)
        await placement.prepare(self._box, self._node)
        request = self._request
        return Seat(
            self._box,
            self._node,
            request.workspace.policy,
            request.principal,
            rules=request.rules,
            is_read_only=request.is_read_only,
            tools=request.ceiling.tools,
            attributes=request.attributes,
        )

    async def _regain(self, seat: Seat, stop: asyncio.Event) -> None:
        def tell(words: str) -> None:
            self._emit(Notice(text=words))

        await self._cluster.placement.regain(self.session_id, seat.node, PlaceWanted(), stop, tell)

    @property
    def _box(self) -> BoxOrder:
        request = self._request
        return BoxOrder(
            session=self.session_id,
            generation=GENERATION,
            session_dir=str(self._dir),
            image=request.image,
            workspace=str(request.workspace.directory),
            workspace_mode=request.workspace.mode,
            as_root=request.workspace.as_root,
            profile=request.profile,
            extras=request.box.extras,
        )

    def _begin(self) -> Transcript:
        try:
            self._dir.mkdir(parents=True)
            (self._dir / "spill").mkdir(mode=0o755)
            self._request.box.lay_out(self._dir)
        except OSError as exc:
            raise TranscriptError(f"{self._dir} cannot be made: {exc}. SANDHOG_STATE_DIR names its root.") from exc
        return Transcript.create(self._dir, self.session_id, GENERATION, secrets=self._request.box.env.values())

    def _emit(self, event: Event) -> None:
        self._transcript(event)
        for sink in self._sinks:
            sink(event)

    def _started(self) -> SessionStarted:
        request = self._request
        return SessionStarted(
            session_id=self.session_id,
            prompt=request.prompt,
            model="",
            policy=request.workspace.policy.value,
            workspace_mode=request.workspace.mode.value,
            workspace_reason=request.workspace.reason,
            workspace=str(request.workspace.directory),
            image=request.image,
            max_steps=0,
            allow_hosts=list(request.box.extras.allow_hosts),
            rules=rules_to_text(request.rules),
        )

    def _end(self, why: str, finished: FinishOutcome) -> None:
        try:
            self._emit(
                SessionEnded(
                    status="completed",
                    stop_reason=why,
                    text="",
                    steps=self._steps.step,
                    calls=self._calls,
                    patch_path=finished.patch_path,
                )
            )
            self._transcript.close()
        except TranscriptError as exc:
            log.warning("the end was not kept", extra={"session_id": self.session_id, "error": str(exc)})


def _failed(code: str, message: str) -> Answer:
    return Answer("error", "", code, message, {})
