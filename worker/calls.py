"""One call's life on a node: order → **claim** → gates → budget → outcome.

The claim makes a call run at most once; the keys this process has accepted are kept beside it, so that neither a
Redis that lost its last second nor a message delivered twice runs a call again.
"""

import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import redis

from sandbox.box import Box
from sandbox.errors import SandboxError
from tools.base import AnyTool, ErrorCode, ToolFailure, ToolResult
from tools.registry import Registry
from tools.schema import parse_arguments
from tools.spilling import SpillFlaw, whereabouts
from worker import budget
from worker.boxes import Boxes
from worker.contract import keys, scripts
from worker.contract.orders import CallOrder, CallOutcome, Fate
from worker.contract.scripts import ClaimVerdict
from worker.gates.gate import GateCall, Handler
from worker.mcp.entry import Mcp
from worker.own_tools import OwnTools
from worker.patience import patiently
from worker.spill import SpillFile, Spills, spill_name

log = logging.getLogger(__name__)

_V = TypeVar("_V")

KEPT_CALLS = 10_000
"""Keys that a node remembers; far more than can be undelivered at any time."""
KEPT_OUTCOMES = 256
"""Outcomes that a node remembers: each may hold tens of kilobytes, and only those just sent can be asked for."""
REFUSED = "The call may have run: its node came too late to begin it. Look before doing it again."
STILL_RUNS = "The call may have run: its node has no answer of it yet. Look before doing it again."


class ClaimRefused(Exception):
    """The call must not run under this delivery and nothing must be stored for it."""


@dataclass(frozen=True)
class CallEnd:
    """A call that was run here and has its outcome."""

    key: str
    tool: str
    outcome: str
    """`success`, `partial` or the error's code."""
    queue_s: float
    run_s: float
    guest_s: float
    """Of that, the run in box or process; 0 for a call that did not get so far."""
    spilled_bytes: int
    traceparent: str
    """As in its order."""


class Calls:
    """Claims and runs this node's calls. Thread-safe; one per process."""

    def __init__(
        self,
        *,
        client: redis.Redis,
        registry: Registry,
        boxes: Boxes,
        own: OwnTools,
        mcp: Mcp,
        gates: Handler,
        spills: Spills,
        incarnation: str,
        on_cut: Callable[[CallOrder, ToolResult, ToolResult], None],
        on_end: Callable[[CallEnd], None] = lambda end: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._on_end = on_end
        self._claim = client.register_script(scripts.CLAIM)
        self._registry = registry
        self._boxes = boxes
        self._own = own
        self._mcp = mcp
        self._gates = gates
        self._spills = spills
        self._incarnation = incarnation
        self._on_cut = on_cut
        self._clock = clock
        self._guard = threading.Lock()
        self._known: OrderedDict[str, Future[CallOutcome] | None] = OrderedDict()
        self._ended: deque[str] = deque()
        self._cancelled: OrderedDict[str, None] = OrderedDict()

    def call(self, order: CallOrder) -> CallOutcome:
        """Run a call that was never started, and return its outcome.

        Raises:
            ClaimRefused: it was started before, is fenced, or belongs to an older generation or step.
        """
        if order.incarnation != self._incarnation:
            return CallOutcome(
                key=order.key, fate=Fate.DID_NOT_RUN, reason="the node was restarted before the call reached it"
            )
        future: Future[CallOutcome] = Future()
        if not self._accept(str(order.key), future):
            raise ClaimRefused(f"{order.key} was accepted before")
        try:
            is_marked = self._take_claim(order)
            outcome = self._through_gates(order, joining=False, is_marked=is_marked)
            future.set_result(outcome)
        except BaseException as exc:
            # With its trace it holds the order: it is let go like an outcome.
            future.set_exception(exc)
            raise
        finally:
            self._keep_outcome(str(order.key))
        return outcome

    def join(self, order: CallOrder) -> CallOutcome:
        """Return the outcome of a call that was started earlier, waiting for it if it runs; never start anything."""
        with self._guard:
            # None also for a key whose outcome was let go: the guest has it as long as it can be asked for.
            future = self._known.get(str(order.key))
        if future is not None:
            try:
                return future.result(timeout=keys.OUTAGE_S)
            except ClaimRefused:
                return CallOutcome(key=order.key, fate=Fate.UNKNOWN, reason=REFUSED)
            except TimeoutError:
                return CallOutcome(key=order.key, fate=Fate.UNKNOWN, reason=STILL_RUNS)
        return self._through_gates(order, joining=True)

    def cancel(self, call_keys: list[str]) -> None:
        """End the running ones of these calls, and let those that did not reach their box yet end before they do."""
        with self._guard:
            for call_key in call_keys:
                self._cancelled[call_key] = None
            _trim(self._cancelled)
        self._own.cancel(call_keys)
        self._mcp.cancel(call_keys)
        for call_key in call_keys:
            box = self._box_of(call_key.split(":", 1)[0])
            if box is not None:
                # A box that does not answer holds up neither the others nor the thread that takes orders.
                thread = threading.Thread(target=_cancel, args=(box, call_key), name=f"cancel-{call_key}", daemon=True)
                thread.start()

    def _box_of(self, session: str) -> Box | None:
        """Return the box in which a session's calls run; those of a sub-agent run in that of the session above it."""
        while session:
            box = self._boxes.running_box(session)
            if box is not None:
                return box
            session = session.rpartition(keys.CHILD_MARK)[0]
        return None

    def _accept(self, call_key: str, future: Future[CallOutcome]) -> bool:
        with self._guard:
            if call_key in self._known:
                return False
            self._known[call_key] = future
            _trim(self._known)
            return True

    def _keep_outcome(self, call_key: str) -> None:
        """Keep the outcome of a call that has ended until many others have; its key is kept much longer."""
        with self._guard:
            self._ended.append(call_key)
            while len(self._ended) > KEPT_OUTCOMES:
                dropped = self._ended.popleft()
                if dropped in self._known:
                    self._known[dropped] = None

    def _take_claim(self, order: CallOrder) -> bool:
        """Return whether a breaker has a record of the call's tool."""
        key = order.key
        # The token makes the claim repeatable by this delivery alone: an answer that Redis gave but the connection
        # lost is asked for again and granted again.
        token = f"{self._incarnation}/{uuid.uuid4().hex}"
        breakers = [keys.session_breakers(key.session), keys.node_breakers(order.node)]
        names = [keys.claim(str(key)), keys.session(key.session), *breakers]
        arguments: list[str | int] = [token, key.generation, key.step, keys.CLAIM_TTL_S, order.tool]
        if key.session != order.box.session:
            names.append(keys.session(order.box.session))
            arguments.append(order.box.generation)
        verdict = patiently(lambda: self._claim(keys=names, args=arguments))
        verdict = ClaimVerdict(verdict.decode() if isinstance(verdict, bytes) else verdict)
        if verdict not in (ClaimVerdict.GRANTED, ClaimVerdict.GRANTED_MARKED):
            raise ClaimRefused(f"{key}: {verdict}")
        return verdict is ClaimVerdict.GRANTED_MARKED

    def _through_gates(self, order: CallOrder, *, joining: bool, is_marked: bool = True) -> CallOutcome:
        claimed_at, started = self._clock(), time.monotonic()
        spill = self._spills.file(Path(order.box.session_dir), spill_name(order), joining=joining)
        whole = self._checked(order, spill, joining, is_marked)
        result, cut = budget.fit(whole, spill, order.result_bytes)
        if spill.flaw is SpillFlaw.VOLUME:
            log.error("the spill was refused", extra={"call_id": str(order.key), "error": spill.problem})
        if result is not whole:
            self._on_cut(order, whole, result)
        fate = Fate.UNKNOWN if result.error_code is ErrorCode.OUTCOME_UNKNOWN else Fate.RAN
        queue_s, run_s = max(0.0, claimed_at - order.sent_at), time.monotonic() - started
        if not joining:
            outcome = result.error_code.value if result.error_code is not None else result.status
            guest_s = result.stats.time_ms / 1000
            self._on_end(
                CallEnd(
                    str(order.key), order.tool, outcome, queue_s, run_s, guest_s, spill.written_bytes, order.traceparent
                )
            )
        return CallOutcome(
            key=order.key,
            fate=fate,
            result=result.model_dump(mode="json"),
            reason=(result.error_message or "") if fate is Fate.UNKNOWN else "",
            cut=cut,
            spill_path=spill.box_path if spill.is_written else "",
            spill_hint=whereabouts(spill) if spill.flaw is not None else "",
            box_note=self._note(order, result),
            mcp=self._mcp.digest(order.box),
            queue_ms=queue_s * 1000,
            run_ms=run_s * 1000,
        )

    def _note(self, order: CallOrder, result: ToolResult) -> str:
        """Return what the conversation must be told of its box; the call that lost the box says so itself."""
        is_lost = result.error_code is ErrorCode.BOX_LOST
        return "" if is_lost else self._boxes.take_note(order.box.session, order.key.session)

    def _checked(self, order: CallOrder, spill: SpillFile, joining: bool, is_marked: bool) -> ToolResult:
        try:
            tool: AnyTool | None = self._registry.get(order.tool) or self._mcp.tool(order)
            if tool is None:
                return ToolResult.failure(ErrorCode.UNKNOWN_TOOL, f"This node has no tool {order.tool!r}.")
            arguments = parse_arguments(tool, dict(order.arguments))
        except ToolFailure as exc:
            return ToolResult.failure(exc.code, exc.message)
        is_cancelled = partial(self._is_cancelled, str(order.key))
        if is_cancelled() and not joining:
            return ToolResult.failure(ErrorCode.CANCELLED, f"{order.tool} was cancelled before it ran.")
        call = GateCall(order, tool, arguments, spill, joining, is_marked=is_marked, is_cancelled=is_cancelled)
        return self._gates(call)

    def _is_cancelled(self, call_key: str) -> bool:
        with self._guard:
            return call_key in self._cancelled


def _cancel(box: Box, call_key: str) -> None:
    try:
        box.cancel(call_key)
    except SandboxError as exc:
        log.info("a call could not be cancelled", extra={"call_id": call_key, "error": str(exc)})


def _trim(known: "OrderedDict[str, _V]") -> None:
    while len(known) > KEPT_CALLS:
        known.popitem(last=False)
