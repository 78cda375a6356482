"""Gate 1: enforces below what was asked above, with the same pure function.

A call that needs a human's yes runs only if the coordinator left a grant for this session, this tool and these very
arguments; a grant is used once.
"""

import redis

from tools.base import ErrorCode, ToolResult
from tools.permission import Policy as ToolPolicy
from tools.permission import Terms, decide
from tools.registry import Registry
from tools.rules import rules_from_text
from tools.verdict import Decision
from worker.contract import keys
from worker.contract.orders import CallOrder
from worker.gates.gate import GateCall, Handler
from worker.patience import patiently


def terms_of(order: CallOrder) -> Terms:
    """Return the terms that an order brings along.

    Raises:
        ValueError: its rules are none.
    """
    tools = None if order.allowed_tools is None else frozenset(order.allowed_tools)
    return Terms(ToolPolicy(order.policy.value), rules_from_text(order.rules), order.is_read_only, tools)


class PermissionGate:
    """Denies what the policy denies and what nobody granted.

    Args:
        client: Redis with the grants.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return a PERMISSION_DENIED result, or what follows."""
        order = call.order
        # A join's call passed this gate when it was started, and used its grant up then.
        if call.joining:
            return following(call)
        if call.tool.runs_on == "coordinator":
            return ToolResult.failure(ErrorCode.INTERNAL_ERROR, f"{order.tool} was sent to a node that cannot run it.")
        try:
            terms = terms_of(order)
        except ValueError as exc:
            return ToolResult.failure(ErrorCode.PERMISSION_DENIED, f"{order.tool} was not run: void rules: {exc}")
        verdict = decide(order.tool, order.arguments, terms, Registry([call.tool]))
        if verdict.decision is Decision.ALLOW:
            return following(call)
        if verdict.decision is Decision.ASK and self._use_grant(call):
            return following(call)
        return ToolResult.failure(ErrorCode.PERMISSION_DENIED, f"{order.tool} was not run: {verdict.reason}")

    def _use_grant(self, call: GateCall) -> bool:
        """Return whether a human said yes; that yes is used up.

        While Redis is away it is asked for again. Where only the answer was lost the yes is lost too: nothing runs.
        """
        grant = keys.grant(call.order.key.session, call.order.digest)
        return bool(patiently(lambda: self._redis.getdel(grant)))
