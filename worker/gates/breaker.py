"""Gate 3, the circuit breaker: a tool that fails again and again is left alone for a while.

Two breakers look at each call: that of its session, which counts every fault, and that of its node, which counts
lost boxes and internal errors, once a session in a row. Records, transitions and their clock are in
`worker.contract.breaker`.
"""

import logging

import redis

from tools.base import ErrorCode, ToolResult
from worker.contract import breaker, keys
from worker.contract.breaker import BreakerRule, BreakerSettings, Ending
from worker.gates.gate import GateCall, Handler
from worker.patience import patiently

log = logging.getLogger(__name__)

NODE_FAULTS = frozenset({ErrorCode.BOX_LOST, ErrorCode.INTERNAL_ERROR})
SCOPES = ("session", "node")


class BreakerGate:
    """Refuses calls of tools that are switched off, and counts how the others end."""

    def __init__(self, client: redis.Redis, node: str, settings: BreakerSettings) -> None:
        self._node = node
        self._settings = settings
        self._admit = client.register_script(breaker.ADMIT)
        self._report = client.register_script(breaker.REPORT)

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return a CIRCUIT_OPEN result, or what follows; a fault says how many there were in a row."""
        # A join's call was let through when it was started; its end counts, under the same token.
        refusal = None if call.joining or not call.is_marked else self._refusal(call)
        return refusal or self._counted(call, following(call))

    def _refusal(self, call: GateCall) -> ToolResult | None:
        lease_ms = int((call.tool.timeout_s(call.arguments) + breaker.PROBE_GRACE_S) * 1000)
        arguments: list[str | int] = [call.order.tool, str(call.order.key), breaker.RECORD_TTL_MS, lease_ms]
        place, *rest = patiently(lambda: self._admit(keys=self._keys(call), args=arguments))
        if place == 0:
            return None
        wait_s = -(-int(rest[0]) // 1000)
        return _open_result(call.order.tool, SCOPES[int(place) - 1], wait_s, _text(rest[1]), int(rest[2]))

    def _counted(self, call: GateCall, result: ToolResult) -> ToolResult:
        rule = self._settings.rule(call.order.tool)
        endings = endings_of(call, result, rule)
        if endings is None or (not call.is_marked and Ending.FAULT not in endings):
            # Where nothing was counted there is nothing to count anew. A fault that came meanwhile stands: the next
            # call is told of it, and its end counts.
            return result
        arguments: list[str | int] = [
            call.order.tool,
            str(call.order.key),
            breaker.RECORD_TTL_MS,
            call.order.key.session,
            rule.faults,
            int(rule.recovery_timeout_s * 1000),
            result.error_code or "",
            *endings,
        ]
        try:
            states = patiently(lambda: self._report(keys=self._keys(call), args=arguments))
        except redis.RedisError as exc:
            # The call has run: its result is worth more than the count.
            log.warning("a call's end was not counted", extra={"call_id": str(call.order.key), "error": str(exc)})
            return result
        if Ending.FAULT not in endings:
            return result
        is_open = any(int(opened) for _, opened in states)
        return _with_count(result, call.order.tool, int(states[0][0]), is_open, rule)

    def _keys(self, call: GateCall) -> list[str]:
        return [keys.session_breakers(call.order.key.session), keys.node_breakers(self._node)]


def endings_of(call: GateCall, result: ToolResult, rule: BreakerRule) -> tuple[Ending, Ending] | None:
    """Return what a result says to the breakers of its session and of its node; None: nobody knows how it ended.

    A result that is `partial`, such as a command that exits with 1, comes from a tool that works.
    """
    code = result.error_code
    if code is None:
        return Ending.SUCCESS, Ending.SUCCESS
    if code is ErrorCode.OUTCOME_UNKNOWN:
        return None
    counted = call.tool.counts_as_fault(code) if rule.counts_as_fault is None else code in rule.counts_as_fault
    if not counted:
        return Ending.NEUTRAL, Ending.NEUTRAL
    return Ending.FAULT, Ending.FAULT if code in NODE_FAULTS else Ending.NEUTRAL


def _open_result(tool: str, scope: str, wait_s: int, why: str, faults: int) -> ToolResult:
    where = "on this node, in several sessions" if scope == "node" else "in this session"
    return ToolResult.failure(
        ErrorCode.CIRCUIT_OPEN,
        f"{tool} was not run: it is switched off after {faults} faults in a row {where}, the last one {why}. "
        f"It may be tried again in {wait_s} s. Go on without it until then.",
        data={"retry_in_s": wait_s, "scope": scope, "faults": faults, "last_fault": why},
    )


def _with_count(result: ToolResult, tool: str, faults: int, is_open: bool, rule: BreakerRule) -> ToolResult:
    if is_open:
        note = f"{tool} is switched off now for {rule.recovery_timeout_s:g} s: {faults} faults in a row."
    else:
        note = f"This was fault {faults} in a row of {tool}; after {rule.faults} it is switched off for a while."
    return result.model_copy(update={"error_message": f"{result.error_message} {note}"})


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
