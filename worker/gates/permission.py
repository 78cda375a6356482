"""Gate 1: enforces below what was asked above, with the same pure function.

A call that needs a human's yes runs only if the coordinator left a grant for this session, this tool and these very
arguments; a grant is used once.
"""

import redis

from tools.base import ErrorCode, ToolResult
from tools.permission import Policy as ToolPolicy
from tools.permission import Terms, decide
from tools.registry import Registry
from tools.verdict import Decision
from worker.contract import keys
from worker.gates.gate import GateCall, Handler
from worker.patience import patiently


class PermissionGate:
    """Denies what the policy denies and what nobody granted.

    Args:
        client: Redis with the grants.
        known: The node's tools; None means the built-in ones.
    """

    def __init__(self, client: redis.Redis, known: Registry | None = None) -> None:
        self._redis = client
        self._known = known

    def __call__(self, call: GateCall, following: Handler) -> ToolResult:
        """Return a PERMISSION_DENIED result, or what follows."""
        order = call.order
        # A join's call passed this gate when it was started, and used its grant up then.
        if call.joining:
            return following(call)
        verdict = decide(order.tool, order.arguments, Terms(ToolPolicy(order.policy.value)), self._known)
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
