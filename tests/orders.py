"""Orders as tests give them: everything has a value, and a test names only what it is about."""

from pathlib import Path
from typing import Any

from pydantic import JsonValue

from tools.registry import builtin_registry
from tools.schema import parse_arguments
from worker.contract.orders import BoxOrder, CallKey, CallOrder, Policy, WorkspaceMode
from worker.gates.gate import GateCall
from worker.spill import SpillFile


def box_order(session: str = "s1", session_dir: Path | None = None, **changes: Any) -> BoxOrder:
    """The box of a session, on a directory that is bound."""
    fields = {
        "session": session,
        "generation": 1,
        "session_dir": str(session_dir or f"/state/sessions/{session}"),
        "image": "box:1",
        "workspace": "/project",
        "workspace_mode": WorkspaceMode.BIND,
    }
    return BoxOrder(**{**fields, **changes})


def call_order(
    tool: str = "Bash",
    arguments: dict[str, JsonValue] | None = None,
    *,
    key: CallKey | None = None,
    box: BoxOrder | None = None,
    **changes: Any,
) -> CallOrder:
    """A call on node `a`, the first of its session unless a key is given."""
    key = key or CallKey(session="s1", generation=1, step=1, index=0)
    fields = {
        "call_id": "c",
        "node": "a",
        "incarnation": "a-1",
        "policy": Policy.BOXED,
        "principal": "me",
        "sent_at": 0.0,
    }
    box = box or box_order(key.session)
    return CallOrder(**{**fields, **changes}, key=key, tool=tool, arguments=arguments or {}, box=box)


def builtin_call(order: CallOrder, spill_dir: Path, *, joining: bool = False) -> GateCall:
    """The call of a built-in tool as the gates get it."""
    tool = builtin_registry().get(order.tool)
    assert tool is not None
    arguments = parse_arguments(tool, dict(order.arguments))
    return GateCall(order, tool, arguments, SpillFile(spill_dir, order.key), joining)
